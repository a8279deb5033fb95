"""Prepare the tuning run of a fused-MoE layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from tuner.devices.table import Device
from tuner.errors import BadInput
from tuner.families.fused_moe.both_gemms import OneConfigStrategy
from tuner.families.fused_moe.choose import MoeBaselines, MoeChooser, MoePolicy, find_baselines
from tuner.families.fused_moe.engine import MoeEngine, ShippedFile, moe_engine
from tuner.families.fused_moe.family import MoeSelection
from tuner.families.fused_moe.predict import CLEAR_GAIN, Predictor
from tuner.families.fused_moe.problem import BATCH_SIZES, FusedMoe, Gemm
from tuner.families.fused_moe.recording import Recording, read_recording, write_recording
from tuner.families.fused_moe.space import seeds_for, space_for, spaces_at
from tuner.problems.points import Candidate, Config, Part, Point
from tuner.problems.results import WINNING, MeasureKind
from tuner.tuning.report import EntryTable, config_cells
from tuner.tuning.request import NOISE, Effort, KnownBefore, PreparedRun, Request, triton_version
from tuner.tuning.search import Budget, Model, Search, budget_for, sample_of
from tuner.tuning.space import Space
from tuner.tuning.tune import FixedStrategy, RunGoal, Strategy, WhereNeeded, everything

# Raced times this near count as equal. It is as far as two runs' choices may lie apart.
TIE = {MeasureKind.GPU: 0.003, MeasureKind.REPLAY: 0.0}
# Kernels compiled for a prediction; each takes one core about 0.4 s.
PREDICT_KERNELS = {Effort.QUICK: 20, Effort.STANDARD: 90, Effort.EXHAUSTIVE: 1000}
# The most kernels per point and BLOCK_SIZE_M of a prediction.
PREDICT_PER_BLOCK = {Effort.QUICK: 2, Effort.STANDARD: 4, Effort.EXHAUSTIVE: 4}
FORESEEN = 4  # the number of a search's seeds at a point that come from the device model


def policy_for(source: MeasureKind, one_config: bool) -> MoePolicy:
    """Return when a faster time counts. `one_config`: the engine runs both gemms with the same
    configuration.
    """
    if source is MeasureKind.PREDICT:
        # CLEAR_GAIN guards against losses; it is no tie.
        return MoePolicy(CLEAR_GAIN, tie=0.0, one_config=one_config)
    return MoePolicy(NOISE[source], tie=TIE[source], one_config=one_config)


TABLE = EntryTable(
    ("gemm", "M", "M N K blocks", "group", "warps", "stages"),
    lambda entry: (entry.point.part.value, entry.point.batch_size, *config_cells(entry.config)),
    lambda entry: (entry.point.part is Gemm.DOWN, entry.point.batch_size),
)


@dataclass(frozen=True)
class _Layer:
    """A layer to tune, and the data from which its run is made."""

    request: Request
    problem: FusedMoe
    engine: MoeEngine
    gemms: tuple[Gemm, ...]
    points: tuple[Point, ...]
    spaces: Mapping[Part, Space]
    at: Mapping[Point, Space]  # the space of each point
    one_config: bool  # both gemms are tuned, and the engine runs them with one configuration
    baselines: MoeBaselines
    corpus: Sequence[ShippedFile]
    predictor: Predictor
    budget: Budget

    @property
    def device(self) -> Device:
        return self.request.device

    @property
    def predicted(self) -> bool:
        return self.request.source.kind is MeasureKind.PREDICT

    def trusted(self, known: KnownBefore) -> dict[Point, Config]:
        """Return the entries that the engine's makers measured on the card, at the points to
        tune.
        """
        partners, entries = self.partners(known), self.baselines.trusted
        return {
            point: entries[point]
            for point in self.points
            if point in entries and _shares_block(entries[point], partners.get(point.batch_size))
        }

    def partners(self, known: KnownBefore) -> Mapping[int, Config]:
        """Return, by batch size, the stored configuration of a gemm that is not tuned now, because
        the engine runs both gemms with the same BLOCK_SIZE_M.
        """
        if len(self.gemms) > 1 or not self.engine.has_down_files():
            return {}
        others = [w.entry for w in known.winners if w.entry.point.part not in self.gemms]
        others.sort(key=lambda entry: WINNING.index(entry.status))  # the best last
        return {entry.point.batch_size: entry.config for entry in others}


def prepare(request: Request) -> PreparedRun:
    """Return the run of a layer. Raises BadInput for a request that cannot be tuned."""
    assert isinstance(request.problem, FusedMoe)  # the registry chose this family
    assert isinstance(request.selected, MoeSelection)
    problem, device, gemms = request.problem, request.device, request.selected.gemms
    engine = moe_engine(request.engine)
    if gemms == (Gemm.DOWN,) and not engine.has_down_files():
        raise BadInput(f"{engine.name} {engine.version} reads no _down files: tune up, or both")
    path = request.source.recording
    recording = read_recording(path) if path else None
    points = _points(request, request.selected, recording)
    spaces = _spaces(request, problem, engine, gemms)
    triton, sizes = triton_version(request.engine), [point.batch_size for point in points]
    found = find_baselines(engine, problem, device, triton, gemms, sizes)
    kept, left, baselines = found.pass_over(request, points)
    corpus = list(engine.shipped(device.vendor)) if left else []
    layer = _Layer(
        request=request,
        problem=problem,
        engine=engine,
        gemms=gemms,
        points=left,
        spaces=spaces,
        at=spaces_at(left, problem, spaces),
        one_config=not engine.has_down_files() and len(gemms) > 1,
        baselines=baselines,
        corpus=corpus,
        predictor=Predictor(device, problem, corpus),
        budget=budget_for(request.effort, len(left), max(map(len, spaces.values()))),
    )
    search = cache(partial(_search, layer))
    named = [gemm for gemm in gemms if gemm is Gemm.UP or engine.has_down_files()]
    return PreparedRun(
        request=request,
        points=points,
        spaces=spaces,
        kernels=engine.lift(device.target.platform),
        goal=partial(_goal, layer),
        strategy=_strategy(layer, search),
        warm_up=search if _searches(request) else lambda: None,
        predictor=layer.predictor,
        tries=_tries(layer),
        file_names={gemm: engine.file_name(problem, device, gemm) for gemm in named},
        table=TABLE,
        recording=recording,
        kept=kept,
        notes=_notes(layer),
        write_recording=lambda path, problem, trials, add, origin: write_recording(
            path, problem, trials, origin
        ),
        shares_recordings=False,
    )


def _points(
    request: Request, selected: MoeSelection, recording: Recording | None
) -> tuple[Point, ...]:
    """Return the points to tune. Refuses points that the recording lacks."""
    recorded = sorted({point.batch_size for point in recording.points}) if recording else None
    sizes = selected.batch_sizes or recorded or BATCH_SIZES
    points = tuple(Point(size, gemm) for size in sorted(set(sizes)) for gemm in selected.gemms)
    if recording:
        assert isinstance(request.problem, FusedMoe)
        recording.check(request.problem, points)
    return points


def _spaces(
    request: Request, problem: FusedMoe, engine: MoeEngine, gemms: Sequence[Gemm]
) -> dict[Part, Space]:
    wide = request.wide
    if wide is None:
        wide = request.source.kind is MeasureKind.GPU or request.effort is Effort.EXHAUSTIVE
    return {
        gemm: space_for(
            problem,
            request.device,
            gemm,
            wide=wide,
            tma=wide and engine.takes_tma(problem, gemm),
        )
        for gemm in gemms
    }


def _tries(layer: _Layer) -> dict[str, int]:
    """Return the most configurations to try at each size, summed over the gemms."""
    each = layer.budget.most
    trusted: Mapping[Point, Config] = {}
    if layer.predicted:
        blocks = max(len(space.axes["BLOCK_SIZE_M"]) for space in layer.spaces.values())
        each = blocks * PREDICT_PER_BLOCK[layer.request.effort]
        trusted = {} if layer.request.effort is Effort.EXHAUSTIVE else layer.baselines.trusted
    found: Counter[str] = Counter()
    for point in layer.points:
        known = {*layer.baselines.configs[point].values(), trusted.get(point)}
        found[point.size] += len(known) if point in trusted else each
    return dict(found)


def _goal(layer: _Layer, known: KnownBefore) -> RunGoal:
    blocks = {size: config["BLOCK_SIZE_M"] for size, config in layer.partners(known).items()}
    trusted = layer.trusted(known)
    chooser = MoeChooser(
        layer.baselines.configs,
        policy_for(layer.request.source.kind, layer.one_config),
        requested={point.batch_size for point in layer.points},
        blocks=blocks,
        previous=known.previous,
        trusted=trusted if layer.predicted else {},
    )
    configs = layer.baselines.configs
    return RunGoal(layer.points, configs, chooser, known.previous, trusted)


def _searches(request: Request) -> bool:
    """Say whether a search proposes configurations. An exhaustive run needs no search."""
    predicted = request.source.kind is MeasureKind.PREDICT
    return not predicted and request.effort is not Effort.EXHAUSTIVE


def _strategy(
    layer: _Layer, search: Callable[[], Callable[[KnownBefore], Strategy]]
) -> Callable[[KnownBefore], Strategy]:
    """Return how to make the strategy that tries configurations."""
    if _searches(layer.request):
        return lambda known: search()(known)
    if layer.predicted:
        return partial(_shortlist, layer)
    return lambda known: everything(layer.at)


def _shortlist(layer: _Layer, known: KnownBefore) -> Strategy:
    """List the candidates to compile for a prediction: none at a point whose trusted entry can
    run.
    """
    trusted = layer.trusted(known)
    if layer.request.effort is Effort.EXHAUSTIVE or not trusted:
        return FixedStrategy(_listed(layer, known, layer.points))
    return WhereNeeded(layer.points, trusted, partial(_listed, layer, known))


def _listed(layer: _Layer, known: KnownBefore, points: Collection[Point]) -> list[Candidate]:
    partners = layer.partners(known)
    legal: dict[Point, Sequence[Config]] = {}
    for point in points:
        partner = partners.get(point.batch_size)
        legal[point] = [c for c in layer.at[point].configs() if _shares_block(c, partner)]
    effort = layer.request.effort
    chosen = layer.predictor.shortlist_all(
        legal, PREDICT_KERNELS[effort], one_config=layer.one_config
    )
    return [
        Candidate(point, config)
        for point, some in chosen.items()
        for config in _best_of_each_block(some, PREDICT_PER_BLOCK[effort])
    ]


def _shares_block(config: Config, partner: Config | None) -> bool:
    return partner is None or config["BLOCK_SIZE_M"] == partner["BLOCK_SIZE_M"]


def _best_of_each_block(ranked: Sequence[Config], most: int) -> list[Config]:
    """Return the first few of each BLOCK_SIZE_M, because a pair of gemms must share it."""
    kept: dict[int, list[Config]] = {}
    for config in ranked:
        kept.setdefault(config["BLOCK_SIZE_M"], []).append(config)
    return [config for some in kept.values() for config in some[:most]]


def _search(layer: _Layer) -> Callable[[KnownBefore], Strategy]:
    """Return a function that makes searches. The seeds and the model's times, which take seconds,
    are found once.
    """
    problem, device, seed = layer.problem, layer.device, layer.request.seed
    spaces, at = layer.spaces, layer.at
    if layer.one_config:  # the up gemm's points stand for both
        spaces = {Gemm.UP: spaces[Gemm.UP].narrowed(spaces[Gemm.DOWN].rules)}
        at = spaces_at([p for p in layer.points if p.part is Gemm.UP], problem, spaces)
    seeds = seeds_for(
        at,
        problem,
        device,
        spaces,
        layer.corpus,
        known={point: list(layer.baselines.configs[point].values()) for point in at},
        foreseen=_foreseen(layer),
    )
    model = _model(layer)
    if model is not None and layer.request.source.kind is MeasureKind.GPU:
        for point, space in at.items():  # the predictor keeps its predictions
            model(point, sample_of(space, point, seed))

    def search(known: KnownBefore) -> Strategy:
        partners = layer.partners(known)
        first = {p: [*filter(None, [partners.get(p.batch_size)]), *seeds[p]] for p in at}
        found = Search(spaces, [*at], first, layer.budget, seed, at, model)
        return OneConfigStrategy(found) if layer.one_config else found

    return search


def _model(layer: _Layer) -> Model | None:
    """Return the device model for the search; None on AMD, because it does not know AMD's
    compiler.
    """
    if layer.device.architecture.launch_options:
        return None
    predictor = layer.predictor
    return predictor.estimate_both if layer.one_config else predictor.estimate_all


def _foreseen(layer: _Layer) -> dict[Point, list[Config]]:
    """Return the device model's best on the engine's grid, for which the model is most accurate."""
    problem, predictor = layer.problem, layer.predictor
    grids: dict[Part, Space] = {g: space_for(problem, layer.device, g) for g in layer.gemms}
    at = spaces_at(layer.points, problem, grids)
    grids_at = {point: grid.configs() for point, grid in at.items()}
    if layer.one_config:
        return predictor.shortlist_both(grids_at, FORESEEN)
    return {point: predictor.shortlist(point, grid, FORESEEN) for point, grid in grids_at.items()}


def _notes(layer: _Layer) -> list[str]:
    path = layer.baselines.unread
    if path is None:
        return []
    use = "kept if they can run" if layer.predicted else "tried"
    return [
        f"{layer.request.engine.name} ships a file that was tuned on this card, and that servers "
        f"do not ask for: {path.parent.name}/{path.name}; its entries are {use}"
    ]

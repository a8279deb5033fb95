"""The tuning run of a fused-MoE layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from tuner.devices.table import Device
from tuner.errors import BadInput
from tuner.families.fused_moe.choose import MoeChooser, MoePolicy
from tuner.families.fused_moe.engine import MoeEngine, ShippedFile, moe_engine
from tuner.families.fused_moe.family import MoeSelection
from tuner.families.fused_moe.pairs import OneConfigStrategy
from tuner.families.fused_moe.predict import CLEAR_GAIN, Predictor
from tuner.families.fused_moe.problem import BATCH_SIZES, FusedMoe, Gemm
from tuner.families.fused_moe.recording import Recording, read_recording, write_recording
from tuner.families.fused_moe.space import (
    baseline_configs,
    older_files,
    seeds_for,
    space_for,
    spaces_at,
)
from tuner.problems.points import Candidate, Config, Part, Point
from tuner.problems.results import WINNING, MeasureKind
from tuner.tuning.report import EntryTable, config_cells
from tuner.tuning.request import NOISE, Effort, Known, Prepared, Request, triton_version
from tuner.tuning.search import Budget, Model, Search, budget_for, sample_of
from tuner.tuning.space import Space
from tuner.tuning.tune import FixedStrategy, RunPlan, Strategy, everything

# Raced times this near count as equal. It is as far as two runs' choices may lie apart.
TIE = {MeasureKind.GPU: 0.003, MeasureKind.REPLAY: 0.0}
# Kernels compiled for a prediction; each takes one core about 0.4 s.
PREDICT_KERNELS = {Effort.QUICK: 50, Effort.STANDARD: 90, Effort.EXHAUSTIVE: 1000}
FORESEEN = 4  # the number of a search's seeds at a point that come from the device model
PREDICT_PER_BLOCK = 4  # the most kernels per point and BLOCK_SIZE_M of a prediction


def policy_for(source: MeasureKind, one_config: bool) -> MoePolicy:
    """When a faster time counts. `one_config`: the engine runs both gemms with one."""
    if source is MeasureKind.PREDICT:
        # CLEAR_GAIN guards against losses; it is no tie.
        return MoePolicy(CLEAR_GAIN, tie=0.0, one_config=one_config, trust_shipped=True)
    return MoePolicy(NOISE[source], tie=TIE[source], one_config=one_config)


TABLE = EntryTable(
    ("gemm", "M", "M N K blocks", "group", "warps", "stages"),
    lambda entry: (entry.point.part.value, entry.point.batch_size, *config_cells(entry.config)),
    lambda entry: (entry.point.part is Gemm.DOWN, entry.point.batch_size),
)


@dataclass(frozen=True)
class _Layer:
    """A layer to tune, and what the parts of its run are made of."""

    request: Request
    problem: FusedMoe
    engine: MoeEngine
    gemms: tuple[Gemm, ...]
    points: tuple[Point, ...]
    spaces: Mapping[Part, Space]
    at: Mapping[Point, Space]  # the space of each point
    one_config: bool  # both gemms are tuned, and the engine runs them with one configuration
    baselines: Mapping[Point, Mapping[str, Config]]
    corpus: Sequence[ShippedFile]
    predictor: Predictor
    budget: Budget

    @property
    def device(self) -> Device:
        return self.request.device

    def partners(self, known: Known) -> Mapping[int, Config]:
        """By batch size, the stored configuration of a gemm that is not tuned now, because the
        engine runs both gemms with one BLOCK_SIZE_M.
        """
        if len(self.gemms) > 1 or not self.engine.has_down_files():
            return {}
        others = [w.entry for w in known.winners if w.entry.point.part not in self.gemms]
        others.sort(key=lambda entry: WINNING.index(entry.status))  # the best one last
        return {entry.point.batch_size: entry.config for entry in others}


def prepare(request: Request) -> Prepared:
    """The run of a layer. Raises BadInput for a request that cannot be tuned."""
    assert isinstance(request.problem, FusedMoe)  # the registry chose this family
    assert isinstance(request.selected, MoeSelection)
    problem, device, gemms = request.problem, request.device, request.selected.gemms
    engine = moe_engine(request.engine)
    if gemms == (Gemm.DOWN,) and not engine.has_down_files():
        raise BadInput(f"{engine.name} {engine.version} reads no _down files: tune up, or both")
    path = request.source.recording
    recording = read_recording(path) if path else None
    points = _points(request, request.selected, recording)  # refuses what the recording lacks
    spaces = _spaces(request, problem, engine, gemms)
    corpus = list(engine.shipped(device.vendor))
    triton, sizes = triton_version(request.engine), [point.batch_size for point in points]
    layer = _Layer(
        request=request,
        problem=problem,
        engine=engine,
        gemms=gemms,
        points=points,
        spaces=spaces,
        at=spaces_at(points, problem, spaces),
        one_config=not engine.has_down_files() and len(gemms) > 1,
        baselines=baseline_configs(engine, problem, device, triton, gemms, sizes),
        corpus=corpus,
        predictor=Predictor(device, problem, corpus),
        budget=budget_for(request.effort, len(points), max(map(len, spaces.values()))),
    )
    search = cache(partial(_search, layer))
    named = [gemm for gemm in gemms if gemm is Gemm.UP or engine.has_down_files()]
    return Prepared(
        request=request,
        points=points,
        spaces=spaces,
        kernels=engine.lift(device.target.backend),
        plan=partial(_plan, layer),
        strategy=_strategy(layer, search),
        warm_up=search if _searches(request) else lambda: None,
        predictor=layer.predictor,
        tries=_tries(layer),
        file_names={gemm: engine.file_name(problem, device, gemm) for gemm in named},
        table=TABLE,
        recording=recording,
        notes=_notes(layer, triton),
        write_recording=lambda path, problem, trials, add: write_recording(path, problem, trials),
        shares_recordings=False,
    )


def _points(
    request: Request, selected: MoeSelection, recording: Recording | None
) -> tuple[Point, ...]:
    recorded = sorted({point.batch_size for point in recording.points}) if recording else None
    sizes = selected.batch_sizes or recorded or BATCH_SIZES
    points = tuple(Point(size, gemm) for size in sorted(set(sizes)) for gemm in selected.gemms)
    if recording:
        assert isinstance(request.problem, FusedMoe)
        recording.check(request.problem, points, request.device)
    return points


def _spaces(
    request: Request, problem: FusedMoe, engine: MoeEngine, gemms: Sequence[Gemm]
) -> dict[Part, Space]:
    wide = request.wide
    if wide is None:
        wide = request.source.kind is MeasureKind.GPU or request.effort is Effort.EXHAUSTIVE
    tma = wide and engine.takes_tma(problem)
    return {gemm: space_for(problem, request.device, gemm, wide=wide, tma=tma) for gemm in gemms}


def _tries(layer: _Layer) -> dict[str, int]:
    """The most configurations to try at each size, summed over the gemms."""
    each = layer.budget.per_point
    if layer.request.source.kind is MeasureKind.PREDICT:
        blocks = len(layer.spaces[layer.points[0].part].axes["BLOCK_SIZE_M"])
        each = blocks * PREDICT_PER_BLOCK
    return {point.size: each * len(layer.gemms) for point in layer.points}


def _plan(layer: _Layer, known: Known) -> RunPlan:
    blocks = {size: config["BLOCK_SIZE_M"] for size, config in layer.partners(known).items()}
    chooser = MoeChooser(
        layer.baselines,
        policy_for(layer.request.source.kind, layer.one_config),
        requested={point.batch_size for point in layer.points},
        blocks=blocks,
        previous=known.previous,
    )
    return RunPlan(layer.points, layer.baselines, chooser, known.previous)


def _searches(request: Request) -> bool:
    """Whether a search proposes configurations. Trying everything needs none."""
    predicted = request.source.kind is MeasureKind.PREDICT
    return not predicted and request.effort is not Effort.EXHAUSTIVE


def _strategy(
    layer: _Layer, search: Callable[[], Callable[[Known], Strategy]]
) -> Callable[[Known], Strategy]:
    """How configurations are tried."""
    if _searches(layer.request):
        return lambda known: search()(known)
    if layer.request.source.kind is MeasureKind.PREDICT:
        return partial(_shortlist, layer)
    return lambda known: everything(layer.at)


def _shortlist(layer: _Layer, known: Known) -> Strategy:
    """What is worth compiling for a prediction."""
    partners = layer.partners(known)
    legal: dict[Point, Sequence[Config]] = {}
    for point, space in layer.at.items():
        partner = partners.get(point.batch_size)
        block = partner["BLOCK_SIZE_M"] if partner else None
        legal[point] = [c for c in space.configs() if block in (None, c["BLOCK_SIZE_M"])]
    chosen = layer.predictor.shortlist_all(
        legal, PREDICT_KERNELS[layer.request.effort], one_config=layer.one_config
    )
    return FixedStrategy(
        [
            Candidate(point, config)
            for point, some in chosen.items()
            for config in _best_of_each_block(some)
        ]
    )


def _best_of_each_block(ranked: Sequence[Config]) -> list[Config]:
    """The first few of each BLOCK_SIZE_M, because a pair of gemms must share that value."""
    kept: dict[int, list[Config]] = {}
    for config in ranked:
        kept.setdefault(config["BLOCK_SIZE_M"], []).append(config)
    return [config for some in kept.values() for config in some[:PREDICT_PER_BLOCK]]


def _search(layer: _Layer) -> Callable[[Known], Strategy]:
    """What makes searches. The seeds and the model's times, which take seconds, are found once."""
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
        known={point: list(layer.baselines[point].values()) for point in at},
        foreseen=_foreseen(layer),
    )
    model = _model(layer)
    if model is not None and layer.request.source.kind is MeasureKind.GPU:
        for point, space in at.items():  # the predictor keeps what it predicted
            model(point, sample_of(space, point, seed))

    def search(known: Known) -> Strategy:
        partners = layer.partners(known)
        first = {p: [*filter(None, [partners.get(p.batch_size)]), *seeds[p]] for p in at}
        found = Search(spaces, [*at], first, layer.budget, seed, at, model)
        return OneConfigStrategy(found) if layer.one_config else found

    return search


def _model(layer: _Layer) -> Model | None:
    """The device model, for the search. It does not know the options of AMD's compiler."""
    if layer.device.architecture.launch_options:
        return None
    predictor = layer.predictor
    return predictor.estimate_both if layer.one_config else predictor.estimate_all


def _foreseen(layer: _Layer) -> dict[Point, list[Config]]:
    """The device model's best on the engine's grid, where the model is most accurate."""
    problem, predictor = layer.problem, layer.predictor
    grids: dict[Part, Space] = {g: space_for(problem, layer.device, g) for g in layer.gemms}
    at = spaces_at(layer.points, problem, grids)
    grids_at = {point: grid.configs() for point, grid in at.items()}
    if layer.one_config:
        return predictor.shortlist_both(grids_at, FORESEEN)
    return {point: predictor.shortlist(point, grid, FORESEEN) for point, grid in grids_at.items()}


def _notes(layer: _Layer, triton: str) -> list[str]:
    engine, problem, device = layer.engine, layer.problem, layer.device
    if engine.find_file(None, problem, device, Gemm.UP, triton):
        return []
    paths = [file.path for file in older_files(problem, device.name, layer.corpus)]
    return [
        f"{layer.request.engine.name} ships a file that was tuned on this card, under an older "
        f"name that its servers no longer ask for: {path.parent.name}/{path.name}. To keep its "
        "configurations instead, copy it to the name above."
        for path in paths[-1:]
    ]

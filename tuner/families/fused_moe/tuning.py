"""The parts of a tuning run that are specific to a fused-MoE layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from tuner.compile.candidates import Binder
from tuner.errors import BadInput, UnwritableOutput
from tuner.families.fused_moe.baselines import baseline_configs, older_files
from tuner.families.fused_moe.choose import MoeChooser, MoePolicy
from tuner.families.fused_moe.engine import MoeEngine, MoeKernels, ShippedFile, moe_engine
from tuner.families.fused_moe.one_config import OneConfigStrategy
from tuner.families.fused_moe.predict.predictor import CLEAR_GAIN, Predictor
from tuner.families.fused_moe.problem import BATCH_SIZES, FusedMoe, Gemm
from tuner.families.fused_moe.recording import Recording, read_recording, write_recording
from tuner.families.fused_moe.seeds import seeds_for
from tuner.families.fused_moe.selection import MoeSelection
from tuner.families.fused_moe.space import space_for, spaces_at
from tuner.problems.points import Candidate, Config, Part, Point
from tuner.problems.results import WINNING, MeasureKind, Trial
from tuner.tuning.bench import Bench, SerialBench
from tuner.tuning.budget import Budget, budget_for
from tuner.tuning.journal import RunStore
from tuner.tuning.report import EntryTable, config_cells
from tuner.tuning.request import Effort
from tuner.tuning.run import NOISE, TIE, TuningRun
from tuner.tuning.run_request import Request
from tuner.tuning.search import Search, sample_of
from tuner.tuning.space import Space
from tuner.tuning.track import Model
from tuner.tuning.tune import FixedStrategy, RunPlan, Strategy

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


class MoeRun(TuningRun):
    """The tuning run of a fused-MoE layer."""

    table = EntryTable(
        ("gemm", "M", "M N K blocks", "group", "warps", "stages"),
        lambda entry: (entry.point.part.value, entry.point.batch_size, *config_cells(entry.config)),
        lambda entry: (entry.point.part is Gemm.DOWN, entry.point.batch_size),
    )

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        assert isinstance(request.problem, FusedMoe)  # the registry opened this run
        assert isinstance(request.selected, MoeSelection)
        self._problem = request.problem
        self._gemms = request.selected.gemms
        self._batch_sizes = request.selected.batch_sizes
        self._check_gemms()
        self.points = self._points()  # refuses a batch size that the recording lacks
        self.file_names = self._file_names()
        self._partner: Mapping[int, Config] = {}

    def _look_up(self, store: RunStore) -> None:
        """Find the stored entries of a gemm that is not tuned now, because the engine runs both
        gemms with one BLOCK_SIZE_M.
        """
        super()._look_up(store)
        if len(self._gemms) == 1 and self._engine.has_down_files():
            found = store.winners_in(self._problem, self.environment)
            others = [w.entry for w in found if w.entry.point.part not in self._gemms]
            others.sort(key=lambda entry: WINNING.index(entry.status))  # the best one last
            self._partner = {entry.point.batch_size: entry.config for entry in others}

    def _points(self) -> tuple[Point, ...]:
        request = self.request
        recorded = self._recording.points if self._recording else None
        known = sorted({p.batch_size for p in recorded}) if recorded else list(BATCH_SIZES)
        sizes = self._batch_sizes or known
        points = tuple(Point(size, gemm) for size in sorted(set(sizes)) for gemm in self._gemms)
        if self._recording:
            self._recording.check(self._problem, points, request.device)
        return points

    @cached_property
    def tries(self) -> dict[str, int]:
        """The most configurations to try at each size, summed over the gemms."""
        each = self._budget.per_point
        if self.request.source.kind is MeasureKind.PREDICT:
            blocks = len(self._spaces[self.points[0].part].axes["BLOCK_SIZE_M"])
            each = blocks * PREDICT_PER_BLOCK
        return {point.size: each * len(self._gemms) for point in self.points}

    # Parts

    @cached_property
    def _recording(self) -> Recording | None:
        path = self.request.source.recording
        return read_recording(path) if path else None

    @cached_property
    def _engine(self) -> MoeEngine:
        return moe_engine(self.request.engine)

    @cached_property
    def _kernels(self) -> MoeKernels:
        return self._engine.lift(self.request.device.target.backend)

    def _binder(self) -> Binder:
        return self._kernels.binder(self._problem, self.request.device.target)

    def _prove_recordable(self, path: Path, add: bool) -> None:
        super()._prove_recordable(path, add)
        if add:
            raise UnwritableOutput(f"{path}: a fused-MoE layer needs a recording to itself")

    def _write_recording(self, path: Path, trials: Sequence[Trial], add: bool) -> None:
        write_recording(path, self._problem, trials)

    @cached_property
    def _spaces(self) -> dict[Part, Space]:
        request = self.request
        wide = request.wide
        if wide is None:
            measured = request.source.kind is MeasureKind.GPU
            wide = measured or request.effort is Effort.EXHAUSTIVE
        tma = wide and self._engine.takes_tma(self._problem)
        return {
            gemm: space_for(self._problem, request.device, gemm, wide=wide, tma=tma)
            for gemm in self._gemms
        }

    @cached_property
    def _narrowed(self) -> dict[Point, Space]:
        """The space of each point."""
        return spaces_at(self.points, self._problem, self._spaces)

    def _prediction(self) -> tuple[Bench, Strategy]:
        request = self.request
        legal = {point: self._legal(point) for point in self.points}
        chosen = self._predictor.shortlist_all(
            legal, PREDICT_KERNELS[request.effort], one_config=self._one_config
        )
        listed = [
            Candidate(point, config)
            for point, some in chosen.items()
            for config in _best_of_each_block(some)
        ]
        return self._predicting(), FixedStrategy(listed)

    def _predicting(self) -> Bench:
        return SerialBench(self._compiler, self._predictor, self.points)

    @cached_property
    def _predictor(self) -> Predictor:
        return Predictor(self.request.device, self._problem, self._corpus)

    def _legal(self, point: Point) -> Sequence[Config]:
        """The configurations of a point's space that share a stored partner's BLOCK_SIZE_M."""
        configs = self._narrowed[point].configs()
        partner = self._partner.get(point.batch_size)
        if partner is None:
            return configs
        return [c for c in configs if c["BLOCK_SIZE_M"] == partner["BLOCK_SIZE_M"]]

    def _search(self) -> Strategy:
        request = self.request
        if request.effort is Effort.EXHAUSTIVE:  # trying everything needs no search
            return FixedStrategy(
                [
                    Candidate(point, config)
                    for point, space in self._narrowed.items()
                    for config in space.configs()
                ]
            )
        spaces, at = self._searched
        points = [*at]
        seeds = {point: self._with_partner(point) for point in points}
        search = Search(spaces, points, seeds, self._budget, request.seed, at, self._model)
        return OneConfigStrategy(search) if self._one_config else search

    @cached_property
    def _searched(self) -> tuple[dict[Part, Space], dict[Point, Space]]:
        """The spaces that a search goes through, and the spaces of its points."""
        if not self._one_config:
            return self._spaces, self._narrowed
        # The up gemm's points stand for both.
        both = self._spaces[Gemm.UP].narrowed(self._spaces[Gemm.DOWN].rules)
        points = [point for point in self.points if point.part is Gemm.UP]
        return {Gemm.UP: both}, spaces_at(points, self._problem, {Gemm.UP: both})

    @cached_property
    def _seeds(self) -> dict[Point, list[Config]]:
        spaces, at = self._searched
        return seeds_for(
            at,
            self._problem,
            self.request.device,
            spaces,
            self._corpus,
            known={point: list(self._baselines[point].values()) for point in at},
            foreseen=self._foreseen,
        )

    def _with_partner(self, point: Point) -> list[Config]:
        """A point's seeds, after a candidate with its stored partner's BLOCK_SIZE_M."""
        partner = self._partner.get(point.batch_size)
        return [*([partner] if partner else []), *self._seeds[point]]

    @property
    def _one_config(self) -> bool:
        """Whether both gemms are tuned, for an engine that runs them with one configuration."""
        return not self._engine.has_down_files() and len(self._gemms) > 1

    @cached_property
    def _budget(self) -> Budget:
        size = max(len(space) for space in self._spaces.values())
        return budget_for(self.request.effort, len(self.points), size)

    def _plan(self) -> RunPlan:
        policy = policy_for(self.request.source.kind, self._one_config)
        return RunPlan(
            requested=self.points,
            incumbents=self._baselines,
            chooser=MoeChooser(
                self._baselines,
                policy,
                requested={p.batch_size for p in self.points},
                blocks={size: config["BLOCK_SIZE_M"] for size, config in self._partner.items()},
                previous=self._previous,
            ),
            previous=self._previous,
        )

    @cached_property
    def _baselines(self) -> Mapping[Point, Mapping[str, Config]]:
        request = self.request
        return baseline_configs(
            self._engine,
            self._problem,
            request.device,
            self._triton,
            self._gemms,
            [point.batch_size for point in self.points],
        )

    @property
    def _model(self) -> Model | None:
        """The device model, for the search. It does not know the options of AMD's compiler."""
        if self.request.device.architecture.launch_options:
            return None
        return self._predictor.estimate_both if self._one_config else self._predictor.estimate_all

    def _prepare(self) -> None:
        if self.request.effort is Effort.EXHAUSTIVE:
            return
        _ = self._seeds
        _, at = self._searched
        if (model := self._model) is not None:
            for point, space in at.items():  # the predictor keeps what it predicted
                model(point, sample_of(space, point, self.request.seed))

    @cached_property
    def _foreseen(self) -> dict[Point, list[Config]]:
        """The device model's best on the engine's grid, where the model is most accurate."""
        request, predictor = self.request, self._predictor
        grids: dict[Part, Space] = {
            g: space_for(self._problem, request.device, g) for g in self._gemms
        }
        at = spaces_at(self.points, self._problem, grids)
        grids_at = {point: grid.configs() for point, grid in at.items()}
        if self._one_config:
            return predictor.shortlist_both(grids_at, FORESEEN)
        return {p: predictor.shortlist(p, grid, FORESEEN) for p, grid in grids_at.items()}

    @cached_property
    def _corpus(self) -> list[ShippedFile]:
        vendor = self.request.device.vendor
        every = self._engine.shipped(nvidia_only=False)
        return [file for file in every if file.key.device.startswith(vendor)]

    @property
    def notes(self) -> Sequence[str]:
        engine, problem, device = self._engine, self._problem, self.request.device
        if engine.find_file(engine.package_root, problem, device, Gemm.UP, self._triton):
            return ()
        paths = [file.path for file in older_files(problem, device.name, self._corpus)]
        return [
            f"{self.request.engine.name} ships a file that was tuned on this card, under an older "
            f"name that its servers no longer ask for: {path.parent.name}/{path.name}. To keep its "
            "configurations instead, copy it to the name above."
            for path in paths[-1:]
        ]

    def _file_names(self) -> dict[Part, str]:
        gemms = [g for g in self._gemms if g is Gemm.UP or self._engine.has_down_files()]
        device = self.request.device
        return {gemm: self._engine.file_name(self._problem, device, gemm) for gemm in gemms}

    def _check_gemms(self) -> None:
        if self._gemms == (Gemm.DOWN,) and not self._engine.has_down_files():
            engine = f"{self._engine.name} {self._engine.version}"
            raise BadInput(f"{engine} reads no _down files: tune up, or both")


def _best_of_each_block(ranked: Sequence[Config]) -> list[Config]:
    """The first few of each BLOCK_SIZE_M, because a pair of gemms must share that value."""
    kept: dict[int, list[Config]] = {}
    for config in ranked:
        kept.setdefault(config["BLOCK_SIZE_M"], []).append(config)
    return [config for some in kept.values() for config in some[:PREDICT_PER_BLOCK]]


open_run = MoeRun

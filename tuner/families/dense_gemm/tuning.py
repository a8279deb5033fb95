"""The parts of a tuning run that are specific to a quantised dense GEMM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from tuner.compile.candidates import Binder, Companions
from tuner.errors import BadInput
from tuner.families.dense_gemm.baselines import find_baselines
from tuner.families.dense_gemm.cells import config_cells
from tuner.families.dense_gemm.engine import GemmKernels, ShippedFile, gemm_engine
from tuner.families.dense_gemm.family import GemmSelection
from tuner.families.dense_gemm.predict.predictor import CLEAR_GAIN, GemmPredictor
from tuner.families.dense_gemm.problem import DenseGemm, DensePart
from tuner.families.dense_gemm.seeds import relatives, seeds_for
from tuner.families.dense_gemm.space import gemm_space, space_at
from tuner.problems.points import Candidate, Config, Part, Point
from tuner.problems.results import MeasureKind
from tuner.tuning.bench import Bench, SerialBench
from tuner.tuning.budget import TRIES, Budget
from tuner.tuning.pointwise import Baselines, pointwise_plan
from tuner.tuning.report import EntryTable
from tuner.tuning.request import Effort
from tuner.tuning.run import TuningRun
from tuner.tuning.run_request import Request
from tuner.tuning.search import Search
from tuner.tuning.space import Space
from tuner.tuning.tune import FixedStrategy, RunPlan, Strategy

# Kernels compiled for a prediction, without the variants for M = 1 and odd M.
PREDICT_KERNELS = {Effort.QUICK: 20, Effort.STANDARD: 40, Effort.EXHAUSTIVE: 1000}
FORESEEN = 4  # the number of a search's seeds at a point that come from the device model
RELATIVES = 3  # the number that earlier GEMMs of the same model may add
# Few large rounds: a model has many shapes, and each round waits for its slowest kernel. Compiling
# costs more than measuring, so a point first tries what is best at its neighbours.
BUDGETS = {
    Effort.QUICK: Budget(TRIES[Effort.QUICK], kernels=100, seeds=8, per_round=4),
    Effort.STANDARD: Budget(TRIES[Effort.STANDARD], kernels=240, seeds=12, per_round=7, nearby=4),
}


class GemmRun(TuningRun):
    """The tuning run of one dense GEMM."""

    table = EntryTable(
        ("M", "M N K blocks", "group", "warps", "stages", "further"),
        lambda entry: (entry.point.batch_size, *config_cells(entry.config)),
    )

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        assert isinstance(request.problem, DenseGemm)  # the registry opened this run
        assert isinstance(request.selected, GemmSelection)
        self._problem = request.problem
        self._selected = request.selected
        self._engine = gemm_engine(request.engine)
        self._check_request()
        self.points = self._points()
        name = self._engine.file_name(self._problem, request.device)
        self.file_names: Mapping[Part, str] = {DensePart.DENSE: name}

    def _points(self) -> tuple[Point, ...]:
        if self._recording is not None and not self._selected.given:
            return tuple(self._recording.points)
        found = tuple(sorted(self._selected.points(self._problem)))
        if self._recording is not None:
            missing = sorted(set(found) - set(self._recording.points))
            if missing:
                held = ", ".join(str(point.batch_size) for point in self._recording.points)
                raise BadInput(f"the recording has no {missing[0].size}, only M of {held}")
        return found

    @cached_property
    def tries(self) -> dict[str, int]:
        """The most configurations to try at each size."""
        most = self._budget.per_point
        if self.request.source.kind is MeasureKind.PREDICT:
            most = PREDICT_KERNELS[self.request.effort]
        return {point.size: min(len(self._narrowed[point]), most) for point in self.points}

    # Parts

    @cached_property
    def _kernels(self) -> GemmKernels:
        return self._engine.lift(self.request.device.target.backend)

    def _binder(self) -> Binder:
        return self._kernels.binder(self._problem, self.request.device.target)

    def _companions(self) -> Companions | None:
        return self._kernels.companions(self._problem, self.request.device.target)

    def _first_candidates(self) -> Sequence[Candidate]:
        if self.request.effort is Effort.EXHAUSTIVE:
            return ()
        return [*self._plan().incumbent_candidates(), *self._search().ask()]

    @cached_property
    def _space(self) -> Space:
        device, problem = self.request.device, self._problem
        return gemm_space(
            problem,
            device,
            self._kernels.choices(problem, device.target),
            lambda config: self._engine.effective(problem, config, device.target),
        )

    @property
    def _spaces(self) -> dict[Part, Space]:
        return {DensePart.DENSE: self._space}

    @cached_property
    def _narrowed(self) -> dict[Point, Space]:
        """The space of each point."""
        device = self.request.device
        return {
            point: space_at(self._space, self._problem, device, point.batch_size)
            for point in self.points
        }

    @cached_property
    def _predictor(self) -> GemmPredictor:
        return GemmPredictor(self.request.device, self._problem)

    def _prediction(self) -> tuple[Bench, Strategy]:
        legal = {point: space.configs() for point, space in self._narrowed.items()}
        chosen = self._predictor.shortlist_all(legal, PREDICT_KERNELS[self.request.effort])
        listed = [Candidate(point, config) for point, some in chosen.items() for config in some]
        return SerialBench(self._compiler, self._predictor, self.points), FixedStrategy(listed)

    def _search(self) -> Strategy:
        if self.request.effort is Effort.EXHAUSTIVE:  # trying everything needs no search
            return FixedStrategy(
                [
                    Candidate(point, config)
                    for point, space in self._narrowed.items()
                    for config in space.configs()
                ]
            )
        seeds = seeds_for(
            self._narrowed,
            self._problem,
            self.request.device,
            self._space,
            self._corpus,
            known=self._known(),
            foreseen=self._foreseen,
        )
        return Search(
            self._spaces,
            self.points,
            seeds,
            self._budget,
            self.request.seed,
            self._narrowed,
            self._predictor.estimate_all,
        )

    @cached_property
    def _budget(self) -> Budget:
        size = max(len(space) for space in self._narrowed.values())
        everything = Budget(size, kernels=size * len(self.points), seeds=size)
        return BUDGETS.get(self.request.effort, everything)

    def _plan(self) -> RunPlan:
        kind, previous = self.request.source.kind, self._previous
        return pointwise_plan(self.points, self._baselines, kind, CLEAR_GAIN, previous)

    @cached_property
    def _baselines(self) -> Baselines:
        sizes = [point.batch_size for point in self.points]
        return find_baselines(self._engine, self._problem, self.request.device, self._corpus, sizes)

    def _known(self) -> dict[Point, Sequence[Config]]:
        earlier = relatives(self._problem, self._workbench.chosen)
        return {
            point: [
                *self._baselines.configs[point].values(),
                *earlier.get(point.batch_size, [])[:RELATIVES],
            ]
            for point in self.points
        }

    @cached_property
    def _foreseen(self) -> dict[Point, list[Config]]:
        return {
            point: self._predictor.shortlist(point, space.configs(), FORESEEN)
            for point, space in self._narrowed.items()
        }

    @cached_property
    def _corpus(self) -> list[ShippedFile]:
        vendor = self.request.device.vendor
        every = self._engine.shipped(nvidia_only=False)
        return [file for file in every if file.key.device.startswith(vendor)]

    def _check_request(self) -> None:
        if self.request.source.routing is not None:
            raise BadInput("a dense GEMM has no routing: leave --routing out")
        if self.request.wide is not None:
            raise BadInput("a dense GEMM has one space to search: leave --wide and --grid out")


open_run = GemmRun

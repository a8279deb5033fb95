"""The parts of a tuning run that are specific to attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

from tuner.compile.candidates import Binder
from tuner.errors import BadInput
from tuner.families.attention.buckets import Bucket, BucketedStrategy, buckets_of
from tuner.families.attention.choose import AttentionChooser
from tuner.families.attention.engine import attention_engine
from tuner.families.attention.kernels import AttentionKernels
from tuner.families.attention.predict.predictor import CLEAR_GAIN, AttentionPredictor
from tuner.families.attention.problem import Attention
from tuner.families.attention.selection import AttentionSelection
from tuner.families.attention.space import attention_space
from tuner.families.attention.workloads import Workload, WorkPoint, usual_workload
from tuner.problems.points import Candidate, Config, Part, Point
from tuner.problems.results import Entry, MeasureKind
from tuner.tuning.bench import Bench, SerialBench
from tuner.tuning.budget import Budget, budget_for
from tuner.tuning.report import EntryTable
from tuner.tuning.request import Effort
from tuner.tuning.run import NOISE, TuningRun
from tuner.tuning.run_request import Request
from tuner.tuning.search import Search
from tuner.tuning.space import Space
from tuner.tuning.tune import FixedStrategy, RunPlan, Strategy

# The first configurations of a search: each was the fastest somewhere in the H200 sweep.
SEEDS = (
    {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_H": 16, "num_warps": 4, "num_stages": 3},
    {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_H": 16, "num_warps": 8, "num_stages": 3},
    {"BLOCK_M": 16, "BLOCK_N": 128, "BLOCK_H": 16, "num_warps": 4, "num_stages": 2},
    {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_H": 16, "num_warps": 4, "num_stages": 4},
    {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_H": 16, "num_warps": 8, "num_stages": 3},
    {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_H": 16, "num_warps": 1, "num_stages": 3},
    # These take latent attention's values out of its keys; the ones above load them.
    {"BLOCK_N": 128, "BLOCK_H": 16, "HAS_MLA": 1, "num_warps": 8, "num_stages": 2},
    {"BLOCK_N": 16, "BLOCK_H": 16, "HAS_MLA": 1, "num_warps": 4, "num_stages": 3},
)


class AttentionRun(TuningRun):
    """The tuning run of one phase of a layer's attention."""

    table = EntryTable(
        ("kernel", "sequences", "new", "cached", "constants"), lambda entry: _cells(entry)
    )

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        assert isinstance(request.problem, Attention)  # the registry opened this run
        assert isinstance(request.selected, AttentionSelection)
        self._problem = request.problem
        self._selected = request.selected
        self._engine = attention_engine(request.engine)
        self._check_request()
        self.points = tuple(point for bucket in self._buckets for point in bucket.points)
        self.file_names = dict.fromkeys(
            self._problem.parts, self._engine.file_name(self._problem, request.device.name)
        )

    @cached_property
    def tries(self) -> dict[str, int]:
        """The most configurations to try at each size, summed over the stages."""
        found: dict[str, int] = {}
        for point in self.points:
            most = min(len(self._spaces[point.part]), self._budget.per_point)
            found[point.size] = found.get(point.size, 0) + most
        return found

    # Parts

    @cached_property
    def _buckets(self) -> list[Bucket]:
        return buckets_of(self._problem, self._workload.points)

    @property
    def _workload(self) -> Workload:
        named = self._selected.workload_of(self._problem)
        if named is not None:
            return named.for_problem(self._problem)
        if self._recording is None:
            return usual_workload(self._problem.phase).for_problem(self._problem)
        sizes = {(p.batch_size, p.new_tokens, p.cached_tokens) for p in self._recording.points}
        return Workload("recording", tuple(WorkPoint(*size, weight=1.0) for size in sorted(sizes)))

    @cached_property
    def _kernels(self) -> AttentionKernels:
        return self._engine.lift(self.request.device.target.backend)

    def _binder(self) -> Binder:
        return self._kernels.binder(self._problem, self.request.device.target)

    @cached_property
    def _spaces(self) -> dict[Part, Space]:
        takes = {point.part: config for point, config in self._defaults.items()}
        device = self.request.device
        return {
            part: attention_space(self._problem, device, part, takes[part])
            for part in self._problem.parts
        }

    @property
    def _constants(self) -> Mapping[Part, Space]:
        """The spaces that the search proposes from."""
        return self._spaces

    @cached_property
    def _defaults(self) -> dict[Point, Config]:
        """The engine's default constants at each point."""
        target = self.request.device.target
        return {p: self._kernels.default_config(self._problem, p, target) for p in self.points}

    def _prediction(self) -> tuple[Bench, Strategy]:
        predictor = AttentionPredictor(self.request.device, self._problem)
        return SerialBench(self._compiler, predictor, self.points), self._worthwhile()

    def _search(self) -> Strategy:
        if self.request.effort is Effort.EXHAUSTIVE:
            return self._listed(lambda config: True)  # the spaces are small
        points = [bucket.representative for bucket in self._buckets]
        seeds = {point: self._seeds(point) for point in points}
        search = Search(self._spaces, points, seeds, self._budget, self.request.seed)
        return BucketedStrategy(search, self._buckets, self._defaults)

    def _seeds(self, point: Point) -> list[Config]:
        space = self._constants[point.part]
        return [space.nearest(seed) for seed in (self._defaults[point], *SEEDS)]

    def _worthwhile(self) -> Strategy:
        """The configurations worth compiling for a prediction: about half. On the H200 sweep the
        rest never won by more than the model's error.
        """
        everything = self.request.effort is Effort.EXHAUSTIVE
        return self._listed(lambda config: everything or worth_compiling(config))

    def _listed(self, wanted: Callable[[Config], bool]) -> Strategy:
        return FixedStrategy(
            [
                Candidate(point, config)
                for point in self.points
                for config in self._spaces[point.part].configs()
                if wanted(config)
            ]
        )

    @cached_property
    def _budget(self) -> Budget:
        size = max(len(space) for space in self._constants.values())
        return budget_for(self.request.effort, len(self._buckets), size)

    def _plan(self) -> RunPlan:
        return RunPlan(
            requested=self.points,
            incumbents={point: {"default": config} for point, config in self._defaults.items()},
            chooser=AttentionChooser(
                self._buckets, self._defaults, *self._margins, previous=self._previous
            ),
            previous=self._previous,
        )

    @property
    def _margins(self) -> tuple[float, float | None]:
        """The gain that counts, and the slowdown at one point that is allowed (None: the same)."""
        if self.request.source.kind is MeasureKind.PREDICT:
            return CLEAR_GAIN, 0.0  # clearly faster overall, and at no point slower
        return NOISE[self.request.source.kind], None

    def _check_request(self) -> None:
        if self.request.source.routing is not None:
            raise BadInput("attention has no routing: leave --routing out")
        if self.request.wide is not None:
            raise BadInput("attention has one space to search: leave --wide and --grid out")


def _cells(entry: Entry) -> tuple[object, ...]:
    point = entry.point
    constants = " ".join(f"{name}={value}" for name, value in sorted(entry.config.items()))
    return point.part.value, point.batch_size, point.new_tokens, point.cached_tokens, constants


def worth_compiling(config: Config) -> bool:
    """Whether a prediction tries these constants."""
    if config.get("BLOCK_N", 32) < 32:
        return False
    return "BLOCK_M" not in config or (config["num_warps"] >= 4 and config["num_stages"] <= 3)

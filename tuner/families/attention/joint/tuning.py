"""The tuning run of decode where the number of KV splits is one of the choices."""

from __future__ import annotations

from collections import Counter
from functools import cached_property

from tuner.errors import BadInput
from tuner.families.attention.engine import engine_config
from tuner.families.attention.joint.choose import JointChooser
from tuner.families.attention.joint.plans import JointBuckets, sizes_of
from tuner.families.attention.joint.strategy import JointStrategy
from tuner.families.attention.predict.predictor import AttentionPredictor
from tuner.families.attention.problem import Stage
from tuner.families.attention.run import AttentionRun, worth_compiling
from tuner.families.attention.space import attention_space
from tuner.families.attention.splits import (
    constants_of,
    worthwhile,
)
from tuner.problems.points import Candidate, Config, Part, Point
from tuner.problems.results import MeasureKind
from tuner.tuning.bench import Bench, SerialBench
from tuner.tuning.request import Effort
from tuner.tuning.search import Search
from tuner.tuning.space import Space
from tuner.tuning.tune import FixedStrategy, RunPlan, Strategy


class JointRun(AttentionRun):
    """Decode's two kernels and its splits, chosen together."""

    @cached_property
    def tries(self) -> dict[str, int]:
        """The most configurations to try at each size, summed over both kernels."""
        stage_1 = len(self._listed_constants())
        if self.request.source.kind is not MeasureKind.PREDICT:
            stage_1 = min(stage_1, self._budget.per_point)
        reductions = len(self._constants[Stage.REDUCE])
        found: dict[str, int] = {}
        for sizes in self._sizes:
            for point in sizes.stage_1.points:
                pairs = self._pairs[point]
                at_room = max(Counter(room for _, room in pairs).values())
                around = min(3, at_room)  # half of the best number of splits, it, and twice
                most = 2 * (1 + len(pairs)) + stage_1 * around + reductions * at_room
                found[point.size] = found.get(point.size, 0) + most
        return found

    @cached_property
    def _sizes(self) -> list[JointBuckets]:
        return sizes_of(self._buckets)

    @cached_property
    def _pairs(self) -> dict[Point, list[tuple[int, int]]]:
        """The numbers of splits to try, each with its room, by the first kernel's points."""
        cores = self.request.device.sm_count
        found: dict[Point, list[tuple[int, int]]] = {}
        for sizes in self._sizes:
            found |= worthwhile(self._problem, sizes.stage_1.points, self._room, cores)
        return found

    @cached_property
    def _defaults(self) -> dict[Point, Config]:
        """The engine's own constants and rule at each point."""
        kernels, target = self._kernels, self.request.device.target
        own = (kernels, self._problem)
        return {point: engine_config(*own, point, target, self._room) for point in self.points}

    @cached_property
    def _room(self) -> int:
        """The most splits of the engine's own rule."""
        return self._engine.most_splits(self._problem, self.request.device.sm_count)

    @cached_property
    def _constants(self) -> dict[Part, Space]:
        """The spaces without the numbers of splits."""
        takes = {point.part: constants_of(config) for point, config in self._defaults.items()}
        device = self.request.device
        return {
            part: attention_space(self._problem, device, part, takes[part])
            for part in self._problem.parts
        }

    def _strategy(self, inner: Strategy) -> Strategy:
        reductions = self._constants[Stage.REDUCE].configs()
        return JointStrategy(inner, self._sizes, self._defaults, self._pairs, reductions)

    def _search(self) -> Strategy:
        if self.request.effort is Effort.EXHAUSTIVE:
            return self._strategy(self._proposals())
        points = [sizes.representative for sizes in self._sizes]
        spaces: dict[Part, Space] = {Stage.DECODE: self._constants[Stage.DECODE]}
        seeds = {point: self._seeds(point) for point in points}
        search = Search(spaces, points, seeds, self._budget, self.request.seed)
        return self._strategy(search)

    def _prediction(self) -> tuple[Bench, Strategy]:
        predictor = AttentionPredictor(self.request.device, self._problem)
        strategy = self._strategy(self._proposals())
        return SerialBench(self._compiler, predictor, self.points), strategy

    def _proposals(self) -> Strategy:
        """All listed constants of the first kernel, for each number of sequences."""
        listed = self._listed_constants()
        places = [sizes.representative for sizes in self._sizes]
        return FixedStrategy([Candidate(point, one) for point in places for one in listed])

    def _listed_constants(self) -> list[Config]:
        """The first kernel's constants that may be tried."""
        configs = self._constants[Stage.DECODE].configs()
        predicted = self.request.source.kind is MeasureKind.PREDICT
        if predicted and self.request.effort is not Effort.EXHAUSTIVE:
            return [config for config in configs if worth_compiling(config)]
        return list(configs)

    def _plan(self) -> RunPlan:
        return RunPlan(
            requested=self.points,
            incumbents={point: {"default": config} for point, config in self._defaults.items()},
            chooser=JointChooser(
                self._sizes, self._defaults, *self._margins, previous=self._previous
            ),
            previous=self._previous,
        )

    def _check_request(self) -> None:
        super()._check_request()
        if not self._engine.takes_splits:
            engine = self.request.engine
            raise BadInput(
                f"{engine.name} {engine.version} loads no plugins, so it cannot be given a number "
                f"of KV splits: name its own, {self._problem.with_room(8).spec()}"
            )

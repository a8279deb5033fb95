"""The parts of a tuning run that are specific to a state update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from tuner.compile.candidates import Binder
from tuner.errors import BadInput
from tuner.families.state_update.engine import StateEngine, StateKernels, state_engine
from tuner.families.state_update.family import StateSelection
from tuner.families.state_update.predict import CLEAR_GAIN, StatePredictor
from tuner.families.state_update.problem import BATCH_SIZES, StateUpdate, Update
from tuner.families.state_update.space import state_space
from tuner.problems.points import Candidate, Part, Point
from tuner.tuning.bench import Bench, SerialBench
from tuner.tuning.pointwise import Baselines, pointwise_plan
from tuner.tuning.report import EntryTable
from tuner.tuning.run import TuningRun
from tuner.tuning.run_request import Request
from tuner.tuning.space import Space
from tuner.tuning.tune import FixedStrategy, RunPlan, Strategy

# A shipped entry is taken to be tuned for numbers up to this many times its key, and down to this
# part of it.
NEAR = 2


class StateRun(TuningRun):
    """The tuning run of one state update.

    All points share compiled kernels, and there are at most 24. So every configuration is tried at
    every point, whatever the effort.
    """

    table = EntryTable(
        ("sequences", "M block", "warps"),
        lambda entry: (
            entry.point.batch_size,
            entry.config["BLOCK_SIZE_M"],
            entry.config["num_warps"],
        ),
    )

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        assert isinstance(request.problem, StateUpdate)  # the registry opened this run
        assert isinstance(request.selected, StateSelection)
        self._problem = request.problem
        self._selected = request.selected
        self._engine: StateEngine = state_engine(request.engine)
        self._check_request()
        self.points = self._points()
        name = self._engine.file_name(self._problem, request.device)
        self.file_names: Mapping[Part, str] = {Update.STATE: name}

    def _points(self) -> tuple[Point, ...]:
        if self._recording is not None and not self._selected.given:
            return tuple(self._recording.points)
        return tuple(sorted(self._selected.points(self._problem)))

    @property
    def tries(self) -> dict[str, int]:
        return {point.size: len(self._space) for point in self.points}

    @cached_property
    def _kernels(self) -> StateKernels:
        return self._engine.lift(self.request.device.target.backend)

    def _binder(self) -> Binder:
        return self._kernels.binder(self._problem, self.request.device.target)

    @cached_property
    def _space(self) -> Space:
        return state_space(self._problem, self.request.device)

    @property
    def _spaces(self) -> dict[Part, Space]:
        return {Update.STATE: self._space}

    def _first_candidates(self) -> Sequence[Candidate]:
        return [*self._plan().incumbent_candidates(), *self._everything()]

    def _everything(self) -> list[Candidate]:
        configs = self._space.configs()
        return [Candidate(point, config) for point in self.points for config in configs]

    def _search(self) -> Strategy:
        return FixedStrategy(self._everything())

    def _prediction(self) -> tuple[Bench, Strategy]:
        predictor = StatePredictor(self.request.device, self._problem)
        return SerialBench(self._compiler, predictor, self.points), self._search()

    def _plan(self) -> RunPlan:
        kind, previous = self.request.source.kind, self._previous
        return pointwise_plan(self.points, self._baselines, kind, CLEAR_GAIN, previous)

    @cached_property
    def _baselines(self) -> Baselines:
        """What the engine runs at its usual numbers of sequences, and at those of the request."""
        sizes = sorted({*BATCH_SIZES, *(point.batch_size for point in self.points)})
        device, problem = self.request.device, self._problem
        keys = self._engine.entries(problem, device)
        found, near = {}, set()
        for size in sizes:
            point = Point(size, Update.STATE)
            found[point] = self._engine.incumbents(problem, device, size)
            asked = self._engine.file_key(problem, size)
            if any(asked <= NEAR * key and key <= NEAR * asked for key in keys):
                near.add(point)
        return Baselines(found, frozenset(near))

    def _check_request(self) -> None:
        if self.request.source.routing is not None:
            raise BadInput("a state update has no routing: leave --routing out")
        if self.request.wide is not None:
            raise BadInput("a state update has one space to search: leave --wide and --grid out")


open_run = StateRun

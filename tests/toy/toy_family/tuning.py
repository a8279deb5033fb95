from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from toy_family.engine import ToyFiles, ToyKernels, toy_engine
from toy_family.problem import Kernel, Rows, Scale
from tuner.compile.candidates import Binder
from tuner.problems.points import Candidate, Config, Part, Point
from tuner.problems.results import (
    Compiled,
    Entry,
    Incumbent,
    MeasureKind,
    Measurement,
    Status,
    Trial,
)
from tuner.tuning.bench import Bench, SerialBench
from tuner.tuning.budget import budget_for
from tuner.tuning.report import EntryTable
from tuner.tuning.run import TuningRun
from tuner.tuning.run_request import Request
from tuner.tuning.search import Search
from tuner.tuning.space import Space
from tuner.tuning.tune import FixedStrategy, RunPlan, Strategy

SPACE = Space({"BLOCK": (64, 128, 256, 512), "num_warps": (1, 2, 4)})


class Predictor:
    """A `Measurer`: wide blocks are fast, and warps cost."""

    def measure(self, candidate: Candidate, compiled: Compiled) -> Measurement:
        time_us = candidate.point.batch_size * (
            1000 / candidate.config["BLOCK"] + candidate.config["num_warps"]
        )
        return Measurement(Status.PREDICTED, time_us)


class FastestOfEach:
    """A `Chooser`: the fastest configuration of each point, which stands alone."""

    def __init__(self, points: Sequence[Point], default: Config) -> None:
        self._points, self._default = points, default

    def choose(self, trials: Sequence[Trial]) -> list[Entry]:
        return [self._entry(point, trials) for point in self._points]

    def finalists(self, trials: Sequence[Trial], entries: Sequence[Entry]) -> list[Trial]:
        return []

    def _entry(self, point: Point, trials: Sequence[Trial]) -> Entry:
        here = {t.candidate.config: t for t in trials if t.candidate.point == point}
        best = min(here.values(), key=lambda t: t.measurement.median_us or float("inf"))
        own = here[self._default].measurement
        measured = best.measurement
        incumbent = Incumbent(self._default, own.status, own.median_us)
        return Entry(
            point,
            best.candidate.config,
            measured.status,
            measured.median_us,
            best.compiled,
            {"default": incumbent},
            "fastest",
        )


class ToyRun(TuningRun):
    table = EntryTable(
        ("rows", "block"), lambda entry: (entry.point.batch_size, entry.config["BLOCK"])
    )

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        assert isinstance(request.problem, Scale)
        assert isinstance(request.selected, Rows)
        self._problem = request.problem
        given = request.selected.given or self._recording is None
        found = request.selected.points(self._problem) if given else self._recording.points
        self.points = tuple(sorted(found))
        name = self._engine.file_name(self._problem, request.device)
        self.file_names: Mapping[Part, str] = {Kernel.SCALE: name}

    @cached_property
    def _engine(self) -> ToyFiles:
        return toy_engine(self.request.engine)

    @cached_property
    def _default(self) -> Config:
        return self._engine.default_config(self._problem, self.request.device, 1)

    @cached_property
    def _kernels(self) -> ToyKernels:
        return self._engine.lift(self.request.device.target.backend)

    @property
    def tries(self) -> dict[str, int]:
        return {point.size: len(SPACE) for point in self.points}

    @property
    def _spaces(self) -> Mapping[Part, Space]:
        return {Kernel.SCALE: SPACE}

    def _binder(self) -> Binder:
        return self._kernels.binder(self._problem)

    def _search(self) -> Strategy:
        if self.request.source.kind is MeasureKind.GPU:
            return FixedStrategy(self._candidates())
        budget = budget_for(self.request.effort, len(self.points), len(SPACE))
        seeds = {point: [self._default] for point in self.points}
        return Search(self._spaces, self.points, seeds, budget, self.request.seed)

    def _prediction(self) -> tuple[Bench, Strategy]:
        bench = SerialBench(self._compiler, Predictor(), self.points)
        return bench, FixedStrategy(self._candidates())

    def _candidates(self) -> list[Candidate]:
        return [Candidate(point, config) for point in self.points for config in SPACE.configs()]

    def _plan(self) -> RunPlan:
        engine, device = self._engine, self.request.device
        runs = {p: engine.incumbents(self._problem, device, p.batch_size) for p in self.points}
        return RunPlan(self.points, runs, FastestOfEach(self.points, self._default))


def open_run(request: Request) -> TuningRun:
    return ToyRun(request)

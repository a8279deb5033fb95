from __future__ import annotations

from collections.abc import Sequence

from toy_family.engine import toy_engine
from toy_family.problem import Kernel, Rows, Scale
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import (
    Compiled,
    Entry,
    Incumbent,
    MeasureKind,
    Measurement,
    Status,
    Trial,
)
from tuner.tuning.report import EntryTable
from tuner.tuning.request import KnownBefore, PreparedRun, Request, recording_of
from tuner.tuning.search import Search, budget_for
from tuner.tuning.space import Space
from tuner.tuning.tune import RunGoal, Strategy, everything

SPACE = Space({"BLOCK": (64, 128, 256, 512), "num_warps": (1, 2, 4)})


TABLE = EntryTable(("rows", "block"), lambda entry: (entry.point.batch_size, entry.config["BLOCK"]))


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


def prepare(request: Request) -> PreparedRun:
    assert isinstance(request.problem, Scale)
    assert isinstance(request.selected, Rows)
    problem, device, engine = request.problem, request.device, toy_engine(request.engine)
    recording = recording_of(request)
    given = request.selected.given or recording is None
    found = request.selected.points(problem) if given else recording.points
    points = tuple(sorted(found))
    default = engine.default_config(problem, device, 1)
    runs = {point: engine.incumbents(problem, device, point.batch_size) for point in points}

    def strategy(known: KnownBefore) -> Strategy:
        if request.source.kind is not MeasureKind.REPLAY:
            return everything(dict.fromkeys(points, SPACE))
        budget = budget_for(request.effort, len(points), len(SPACE))
        seeds = {point: [default] for point in points}
        return Search({Kernel.SCALE: SPACE}, points, seeds, budget, request.seed)

    return PreparedRun(
        request=request,
        points=points,
        spaces={Kernel.SCALE: SPACE},
        kernels=engine.lift(device.target.platform),
        goal=lambda known: RunGoal(points, runs, FastestOfEach(points, default)),
        strategy=strategy,
        predictor=Predictor(),
        tries={point.size: len(SPACE) for point in points},
        file_names={Kernel.SCALE: engine.file_name(problem, device)},
        table=TABLE,
        recording=recording,
    )

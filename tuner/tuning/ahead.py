"""Compile what a run will probably ask for, before it has a GPU.

The run's own search goes through its rounds, with times that the device model predicts from what
was compiled. So the seeds come first, at all points, then the neighbours of what the model takes
for the best. The model errs by some percent, so the search goes through them again with times that
are off by as much, which leads it to other neighbours. Nothing is measured, and nothing is stored
but compile results.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tuner.problems.points import Candidate
from tuner.problems.results import Measurement, Totals, Trial
from tuner.tuning.bench import Bench
from tuner.tuning.tune import Plan, Strategy, Unwatched, explore

# How often the search runs. On recordings of two layers, one run asks for 67 to 72 % of the kernels
# that the search asks for with the true times, 8 runs for 91 to 94 %, and 16 runs for 96 to 99 %
# (docs/benchmarks.md).
PASSES = 16
DOUBT = 0.1  # the standard deviation of a predicted time's logarithm


@dataclass(frozen=True)
class Ahead:
    """How far a run's kernels are compiled."""

    tried: int  # candidates
    enough: bool  # the first round is compiled at all points, so a GPU has work while the rest is


Report = Callable[[Ahead], None]


class FirstRound:
    """A strategy that knows what it asked for first."""

    def __init__(self, inner: Strategy) -> None:
        self._inner = inner
        self.candidates: set[Candidate] | None = None

    def ask(self) -> list[Candidate]:
        asked = self._inner.ask()
        if self.candidates is None:
            self.candidates = set(asked)
        return asked

    def tell(self, candidate: Candidate, measurement: Measurement) -> None:
        self._inner.tell(candidate, measurement)


class Doubting:
    """A strategy that is told times which are off by a random factor."""

    def __init__(self, inner: Strategy, seed: int) -> None:
        self._inner = inner
        self._rng = random.Random(seed)  # noqa: S311 (no secret)

    def ask(self) -> list[Candidate]:
        return self._inner.ask()

    def tell(self, candidate: Candidate, measurement: Measurement) -> None:
        if measurement.median_us is not None:
            factor = math.exp(self._rng.gauss(0.0, DOUBT))
            measurement = replace(measurement, median_us=measurement.median_us * factor)
        self._inner.tell(candidate, measurement)


def compile_ahead(plan: Plan, searches: Iterable[Strategy], bench: Bench, report: Report) -> Totals:
    """Compile a run's candidates with a bench that predicts; `report` hears of each step.

    `searches` are the same search, new each time.
    """
    started = time.perf_counter()
    first: FirstRound | None = None
    known: dict[Candidate, Trial] = {}

    def keep(finished: Sequence[Trial]) -> None:
        known.update((trial.candidate, trial) for trial in finished)
        asked = first.candidates if first else None
        report(Ahead(len(known), enough=asked is not None and asked <= known.keys()))

    for number, search in enumerate(searches):
        if first is None:
            first = FirstRound(search)
            search = first
        else:
            search = Doubting(search, number)
        explore(plan, search, bench, keep, known, Unwatched())
    bench.totals.wall_s = time.perf_counter() - started
    return bench.totals

"""Compile what a run will probably ask for, before it has a GPU.

The run's own search goes through its rounds, with times that the device model predicts from what
was compiled. So the seeds come first, at all points, then the neighbours of what the model takes
for the best. Nothing is measured, and nothing is stored but compile results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner.problems.points import Candidate
from tuner.problems.results import Measurement, Totals, Trial
from tuner.tuning.bench import Bench
from tuner.tuning.tune import Plan, Strategy, Unwatched, explore


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


def compile_ahead(plan: Plan, strategy: Strategy, bench: Bench, report: Report) -> Totals:
    """Compile a run's candidates with a bench that predicts; `report` hears of each step."""
    started = time.perf_counter()
    first = FirstRound(strategy)
    done: set[Candidate] = set()

    def keep(finished: Sequence[Trial]) -> None:
        done.update(trial.candidate for trial in finished)
        report(Ahead(len(done), enough=first.candidates is not None and first.candidates <= done))

    explore(plan, first, bench, keep, {}, Unwatched())
    bench.totals.wall_s = time.perf_counter() - started
    return bench.totals

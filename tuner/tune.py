"""The loop: ask for candidates, try what is new, keep every trial, choose.

Nothing here knows where proposals, kernels, times or rows come from: they are passed in.
A run is resumed by running the same search again, with its stored trials answering first, so
that nothing is measured twice and, where times repeat exactly, the winners are the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.bench import Bench
from tuner.choose import Policy, choose
from tuner.problems import Candidate, Config, Point
from tuner.results import Entry, Measurement, Trial

Progress = Callable[[Trial], None]


class Strategy(Protocol):
    """Proposes candidates and learns from their measurements."""

    def ask(self) -> list[Candidate]:
        """What to try next; empty while it waits for tells, and when it is done."""
        ...

    def tell(self, candidate: Candidate, measurement: Measurement) -> None:
        """Take the measurement of a candidate, its own proposal or not."""
        ...


class Journal(Protocol):
    """Where a run's trials are kept. `add` is durable before it returns."""

    def trials(self) -> Sequence[Trial]: ...

    def add(self, trials: Sequence[Trial]) -> None: ...


@dataclass(frozen=True)
class Plan:
    """What a run must answer."""

    requested: Sequence[Point]  # the points to tune
    incumbents: Mapping[Point, Mapping[str, Config]]  # for every point that a file must hold
    policy: Policy

    def incumbent_candidates(self) -> list[Candidate]:
        """What the engine would run without this tuner: candidates like any other."""
        wanted = {
            Candidate(point, config): None
            for point, by_name in self.incumbents.items()
            for config in by_name.values()
        }
        return list(wanted)


def tune(
    plan: Plan, strategy: Strategy, bench: Bench, journal: Journal, progress: Progress
) -> list[Entry]:
    """Run `plan` to its entries; raises NothingFits where a requested point has none.

    `bench.totals.wall_s` is set to the seconds this took.
    """
    started = time.perf_counter()
    trials = {trial.candidate: trial for trial in journal.trials()}
    _explore(plan, strategy, bench, _keeper(trials, journal, progress), trials)
    bench.totals.wall_s = time.perf_counter() - started
    requested = {point.batch_size for point in plan.requested}
    return choose(list(trials.values()), plan.incumbents, plan.policy, requested)


def _explore(
    plan: Plan,
    strategy: Strategy,
    bench: Bench,
    keep: Callable[[list[Trial]], None],
    known: Mapping[Candidate, Trial],
) -> None:
    asked: dict[Candidate, int] = {}  # in order: answers are told in the order of asking
    waiting: set[Candidate] = set()
    proposals: Iterable[Candidate] = plan.incumbent_candidates()
    while True:
        proposals = [c for c in proposals if c not in asked]
        asked.update((candidate, len(asked) + i) for i, candidate in enumerate(proposals))
        answered = [known[candidate] for candidate in proposals if candidate in known]
        fresh = [candidate for candidate in proposals if candidate not in known]
        bench.submit(fresh)
        waiting.update(fresh)
        if waiting:
            finished = bench.poll(wait=not answered)
            keep(finished)
            waiting.difference_update(trial.candidate for trial in finished)
            answered += finished
        elif not answered:
            return
        for trial in sorted(answered, key=lambda trial: asked[trial.candidate]):
            strategy.tell(trial.candidate, trial.measurement)
        proposals = strategy.ask()


def _keeper(
    trials: dict[Candidate, Trial], journal: Journal, progress: Progress
) -> Callable[[list[Trial]], None]:
    def keep(finished: list[Trial]) -> None:
        journal.add(finished)
        for trial in finished:
            trials[trial.candidate] = trial
            progress(trial)

    return keep

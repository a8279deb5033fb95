"""Where a run's trials are kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.problems.points import Problem
from tuner.problems.records import Run, RunKey, RunState, Winner
from tuner.problems.results import Entry, Environment, Totals, Trial


class RunStore(Protocol):
    """What a run asks of a store."""

    def begin_run(self, key: RunKey) -> Run:
        """The run of that key: a new one, or the one that was stopped."""
        ...

    def trials(self, run: Run) -> Sequence[Trial]: ...

    def add_trials(self, run: Run, new: Iterable[Trial]) -> None: ...

    def finish_run(self, run: Run, entries: Iterable[Entry], totals: Totals) -> None:
        """Publish the entries as winners, and close the run."""
        ...

    def winners_in(self, problem: Problem, environment: Environment) -> Sequence[Winner]:
        """All that is published for a problem in an environment."""
        ...

    def stop_run(self, run: Run, state: RunState, reason: str = "") -> None: ...


@dataclass(frozen=True)
class RunJournal:
    """A tuning loop's journal: one run's trials, kept in a store."""

    store: RunStore
    run: Run

    def trials(self) -> Sequence[Trial]:
        return self.store.trials(self.run)

    def add(self, trials: Sequence[Trial]) -> None:
        self.store.add_trials(self.run, trials)

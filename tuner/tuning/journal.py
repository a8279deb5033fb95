"""Keep the trials of a run in a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.problems.points import Problem
from tuner.problems.records import Outlook, Run, RunKey, RunState, Winner
from tuner.problems.results import Entry, Environment, Totals, Trial


class RunStore(Protocol):
    """The part of a store that a run needs."""

    def begin_run(self, key: RunKey) -> Run:
        """The run with that key: a new one, or a stopped one to resume."""

    def expect(self, run: Run, outlook: Outlook) -> None:
        """Tell who follows the run what it will try. Nothing depends on it."""

    def trials(self, run: Run) -> Sequence[Trial]: ...

    def add_trials(self, run: Run, new: Iterable[Trial]) -> None: ...

    def finish_run(self, run: Run, entries: Iterable[Entry], totals: Totals) -> None:
        """Publish the entries as winners, and close the run."""

    def winners_in(self, problem: Problem, environment: Environment) -> Sequence[Winner]:
        """Everything published for a problem in an environment."""

    def stop_run(self, run: Run, state: RunState, reason: str = "") -> None: ...


@dataclass(frozen=True)
class RunJournal:
    """The trials of one run, kept in a store."""

    store: RunStore
    run: Run

    def trials(self) -> Sequence[Trial]:
        return self.store.trials(self.run)

    def add(self, trials: Sequence[Trial]) -> None:
        self.store.add_trials(self.run, trials)

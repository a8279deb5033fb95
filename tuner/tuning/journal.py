"""What a run needs of a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

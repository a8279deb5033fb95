"""A span for each batch of trials of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import time_ns

from tuner.problems.points import Problem
from tuner.problems.records import Outlook, Run, RunKey, RunState, Winner
from tuner.problems.results import Entry, Environment, Totals, Trial
from tuner.tuning.journal import RunStore
from workers.tracing import add_span


class SpannedTrials:
    """A run's store that makes a span of each batch of trials, from the batch before to its end."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._since_ns = time_ns()

    def begin_run(self, key: RunKey) -> Run:
        """Begin the run, and the first batch."""
        run = self._store.begin_run(key)
        self._since_ns = time_ns()
        return run

    def expect(self, run: Run, outlook: Outlook) -> None:
        """Tell who follows the run what it will try."""
        self._store.expect(run, outlook)

    def trials(self, run: Run) -> Sequence[Trial]:
        """The run's trials."""
        return self._store.trials(run)

    def add_trials(self, run: Run, new: Iterable[Trial]) -> None:
        """Store a batch, and make a span of it."""
        batch = list(new)
        self._store.add_trials(run, batch)
        now = time_ns()
        if batch:
            add_span("trials", self._since_ns, now, {"tuner.trials": len(batch)})
        self._since_ns = now

    def finish_run(self, run: Run, entries: Iterable[Entry], totals: Totals) -> None:
        """Publish the entries, and close the run."""
        self._store.finish_run(run, entries, totals)

    def winners_in(self, problem: Problem, environment: Environment) -> Sequence[Winner]:
        """What is published for a problem in an environment."""
        return self._store.winners_in(problem, environment)

    def stop_run(self, run: Run, state: RunState, reason: str = "") -> None:
        """Mark the run as stopped."""
        self._store.stop_run(run, state, reason)

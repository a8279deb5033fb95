"""One run's trials, as the tuning loop asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.problems.records import Run
from tuner.problems.results import Trial
from tuner.store.store import Store


@dataclass(frozen=True)
class RunJournal:
    """Where the loop keeps a run's trials; `add` is durable before it returns."""

    store: Store
    run: Run

    def trials(self) -> Sequence[Trial]:
        return self.store.trials(self.run)

    def add(self, trials: Sequence[Trial]) -> None:
        self.store.add_trials(self.run, trials)

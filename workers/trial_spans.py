"""A span for each batch of trials of a run."""

from __future__ import annotations

from collections.abc import Collection
from time import time_ns

from tuner.problems.points import Candidate
from tuner.problems.results import Trial
from tuner.tuning.tune import Unwatched
from workers.tracing import add_span


class TrialSpans(Unwatched):
    """Makes a span of each batch of trials, from the batch before to its end.

    It hears of each trial once that is stored, and of the next question after each batch.
    """

    def __init__(self) -> None:
        self._since_ns, self._count = time_ns(), 0

    def tried(self, trial: Trial) -> None:
        self._count += 1

    def step(self, text: str) -> None:
        """Begin the first batch once the run has begun, and the others after a step."""
        self._since_ns = time_ns()

    def asked(self, fresh: Collection[Candidate], stored: Collection[Trial]) -> None:
        """End a batch."""
        now = time_ns()
        if self._count:
            add_span("trials", self._since_ns, now, {"tuner.trials": self._count})
        self._since_ns, self._count = now, 0

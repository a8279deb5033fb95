"""A search for engines that run both gemms of a layer with one configuration."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.families.fused_moe.problem import Gemm
from tuner.problems.points import Candidate, Point
from tuner.problems.results import Measurement
from tuner.tuning.tune import Strategy


class OneConfigStrategy:
    """Tries each proposal of an inner strategy at both gemms, and tells it the sum of the times.

    The inner strategy proposes for the up gemm's points.
    """

    def __init__(self, inner: Strategy) -> None:
        self._inner = inner
        self._results: dict[Candidate, Measurement] = {}

    def ask(self) -> list[Candidate]:
        asked = [both for proposal in self._inner.ask() for both in _at_both(proposal)]
        return [candidate for candidate in asked if candidate not in self._results]

    def tell(self, candidate: Candidate, measurement: Measurement) -> None:
        self._results.setdefault(candidate, measurement)
        up, down = _at_both(candidate)
        found = [self._results[c] for c in (up, down) if c in self._results]
        if len(found) == 2:
            self._inner.tell(up, _sum(found))


def _at_both(candidate: Candidate) -> tuple[Candidate, Candidate]:
    size = candidate.point.batch_size
    up, down = (Candidate(Point(size, gemm), candidate.config) for gemm in (Gemm.UP, Gemm.DOWN))
    return up, down


def _sum(measurements: Sequence[Measurement]) -> Measurement:
    """The time of both gemms, or the first measurement without a time."""
    medians = [m.median_us for m in measurements if m.median_us is not None]
    if len(medians) < len(measurements):
        return next(m for m in measurements if m.median_us is None)
    return Measurement(measurements[0].status, sum(medians))

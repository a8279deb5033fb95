"""A search for engines that run both gemms of a layer with one configuration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from tuner.families.fused_moe.problem import Gemm
from tuner.problems.points import Candidate, Point
from tuner.problems.results import Measurement
from tuner.tuning.tune import Strategy

# A configuration is tried at the down gemm if it would be the best one with a down gemm this many
# times as fast as the fastest one so far.
HOPE = 1.1


class OneConfigStrategy:
    """Tries the proposals of an inner strategy at both gemms, and tells it the sum of the times.

    The inner strategy proposes for the up gemm's points. What it proposes for a point at once is
    a round: all its up gemms are tried, then the down gemms of the ones that may still be the best.
    Only then is the inner strategy told, so what it hears does not depend on the order of answers.
    """

    def __init__(self, inner: Strategy) -> None:
        self._inner = inner
        self._results: dict[Candidate, Measurement] = {}
        self._asked: set[Candidate] = set()
        self._rounds: defaultdict[Point, list[Candidate]] = defaultdict(list)  # not told, of UP
        # In the rounds before: the least time of the down gemm, and of both.
        self._least_us: dict[Point, tuple[float, float]] = {}

    def ask(self) -> list[Candidate]:
        asked = self._advance()
        while proposals := self._inner.ask():
            for proposal in proposals:
                self._rounds[proposal.point].append(proposal)
            asked += proposals
            asked += self._advance()
        fresh = [c for c in asked if c not in self._asked and c not in self._results]
        self._asked.update(fresh)
        return list(dict.fromkeys(fresh))

    def tell(self, candidate: Candidate, measurement: Measurement) -> None:
        self._results.setdefault(candidate, measurement)

    def _advance(self) -> list[Candidate]:
        """Tell the inner strategy about each round that is done. Returns the down gemms to try."""
        asked: list[Candidate] = []
        for point, round_ in list(self._rounds.items()):
            if not all(up in self._results for up in round_):
                continue
            needed = [down for down in self._promising(round_) if down not in self._results]
            if needed:
                asked += needed
            else:
                self._tell(self._rounds.pop(point))
        return asked

    def _promising(self, round_: Sequence[Candidate]) -> Iterator[Candidate]:
        """The down gemms of a round that are worth trying; all of them in a point's first round."""
        down_us, both_us = self._least_us.get(round_[0].point, (0.0, inf))
        for up in round_:
            time_us = self._results[up].median_us
            if time_us is not None and time_us + down_us / HOPE < both_us:
                yield _down(up)

    def _tell(self, round_: Sequence[Candidate]) -> None:
        point = round_[0].point
        for up in round_:
            both = self._sum(up)
            down_us = self._results[_down(up)].median_us if _down(up) in self._results else None
            if both.median_us is not None and down_us is not None:
                known = self._least_us.get(point, (inf, inf))
                self._least_us[point] = min(known[0], down_us), min(known[1], both.median_us)
            self._inner.tell(up, both)

    def _sum(self, up: Candidate) -> Measurement:
        """The time of both gemms, or the first measurement without a time.

        An untried down gemm is taken to be as slow as the up gemm.
        """
        first = self._results[up]
        second = self._results.get(_down(up), first)
        if first.median_us is None or second.median_us is None:
            return first if first.median_us is None else second
        return replace(first, median_us=first.median_us + second.median_us)


def _down(up: Candidate) -> Candidate:
    return Candidate(Point(up.point.batch_size, Gemm.DOWN), up.config)

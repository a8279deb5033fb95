"""Propose decode's configurations to try, if the number of KV splits is to be chosen too.

1. With the engine's own constants, all worthwhile numbers of splits at each point.
2. For each number of sequences, the best room and numbers are kept. The second kernel's constants
   are all tried with them. An inner strategy proposes the first kernel's constants, which are all
   tried with the kept numbers, with half of each and with twice as many.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tuner.families.attention.joint.choices import JointBuckets, JointChoice, Times
from tuner.families.attention.problem import AttentionPart
from tuner.families.attention.splits import constants_of, with_splits
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Measurement, Status
from tuner.tuning.tune import Strategy

Pairs = Mapping[Point, Sequence[tuple[int, int]]]  # (splits, room) to try at each point


class JointStrategy:
    """The two steps of this module. The inner strategy proposes for the representative of each
    `JointBuckets`. It is told the time of both kernels together, summed up over the lengths.
    """

    def __init__(
        self,
        inner: Strategy,
        sizes: Sequence[JointBuckets],
        own: Mapping[Point, Config],
        pairs: Pairs,
        reductions: Sequence[Config],
    ) -> None:
        """Wait for the first `ask`.

        `own`: the engine's configuration of each point. `pairs`: by the first kernel's points.
        `reductions`: the second kernel's constants.
        """
        self._inner, self._own, self._pairs = inner, own, pairs
        self._reductions = reductions
        self._sizes = {one.representative: one for one in sizes}
        self._results: dict[Candidate, Measurement] = {}
        self._first: list[Candidate] = []  # of step 1
        self._kept: dict[Point, JointChoice] = {}  # after step 1, by representative
        self._waiting: dict[Candidate, list[Candidate]] = {}  # a proposal's candidates

    def ask(self) -> list[Candidate]:
        if not self._first:
            self._first = [c for sizes in self._sizes.values() for c in self._numbers(sizes)]
            return list(self._first)
        if any(candidate not in self._results for candidate in self._first):
            return []
        asked = []
        if not self._kept:
            self._kept = {at: self._best(sizes) for at, sizes in self._sizes.items()}
            asked = [c for sizes in self._sizes.values() for c in self._with_reductions(sizes)]
        return [*asked, *self._proposed()]

    def tell(self, candidate: Candidate, measurement: Measurement) -> None:
        self._results.setdefault(candidate, measurement)
        self._pass_on()

    def _numbers(self, sizes: JointBuckets) -> Iterator[Candidate]:
        """Yield the candidates of step 1: the engine's own configuration, and its constants with
        other splits.
        """
        for part in (AttentionPart.DECODE, AttentionPart.REDUCE):
            for first, point in zip(sizes.decode.points, sizes.points(part), strict=True):
                own = self._own[point]
                yield Candidate(point, own)
                for splits, room in self._pairs[first]:
                    yield Candidate(point, with_splits(constants_of(own), splits, room))

    def _best(self, sizes: JointBuckets) -> JointChoice:
        """Return the best choice of step 1; the most splits if the engine's own constants cannot
        run.
        """
        choices = Times(sizes, self._timed(self._first), self._own).choices()
        if choices:
            return choices[0]
        most = [self._pairs[point][-1] for point in sizes.decode.points]
        splits = tuple(n for n, _ in most)
        return JointChoice(math.inf, most[0][1], splits, self._own_constants(sizes), ())

    def _timed(self, candidates: Iterable[Candidate]) -> dict[Candidate, float]:
        times = ((c, self._results[c].median_us) for c in candidates)
        return {candidate: us for candidate, us in times if us is not None}

    def _own_constants(self, sizes: JointBuckets) -> tuple[Config, Config]:
        decode, reduce = (bucket.representative for bucket in (sizes.decode, sizes.reduce))
        return constants_of(self._own[decode]), constants_of(self._own[reduce])

    def _with_reductions(self, sizes: JointBuckets) -> Iterator[Candidate]:
        kept = self._kept[sizes.representative]
        for first, point in zip(sizes.decode.points, sizes.reduce.points, strict=True):
            for splits in self._at_room(first, kept.room):
                for constants in self._reductions:
                    yield Candidate(point, with_splits(constants, splits, kept.room))

    def _at_room(self, point: Point, room: int) -> list[int]:
        return [splits for splits, at in self._pairs[point] if at == room]

    def _proposed(self) -> list[Candidate]:
        """Return the inner strategy's proposals at all lengths, until some of them have to be
        tried.
        """
        asked: list[Candidate] = []
        while not asked and (proposals := self._inner.ask()):
            for proposal in proposals:
                wanted = list(self._around(proposal))
                self._waiting[proposal] = wanted
                asked += [c for c in wanted if c not in self._results]
            self._pass_on()
        return asked

    def _around(self, proposal: Candidate) -> Iterator[Candidate]:
        sizes, kept = self._sizes[proposal.point], self._kept[proposal.point]
        for point, best in zip(sizes.decode.points, kept.splits, strict=True):
            for splits in self._at_room(point, kept.room):
                if best <= 2 * splits and splits <= 2 * best:
                    yield Candidate(point, with_splits(proposal.config, splits, kept.room))

    def _pass_on(self) -> None:
        """Tell the inner strategy of the proposals whose candidates all have results."""
        for proposal, wanted in list(self._waiting.items()):
            if all(candidate in self._results for candidate in wanted):
                del self._waiting[proposal]
                self._inner.tell(proposal, self._together(proposal, wanted))

    def _together(self, proposal: Candidate, wanted: Sequence[Candidate]) -> Measurement:
        """Return the cost of the first kernel's constants, beside the engine's own second
        kernel.
        """
        sizes = self._sizes[proposal.point]
        beside = (
            c
            for c in self._first
            if c.point.part is AttentionPart.REDUCE or c.config == self._own[c.point]
        )
        us = self._timed([*beside, *wanted])
        wanted_constants = proposal.config, self._own_constants(sizes)[1]
        choices = Times(sizes, us, self._own).choices()
        costs = [choice.cost for choice in choices if choice.constants == wanted_constants]
        if costs:
            return Measurement(Status.OK, min(costs))
        failed = (self._results[c] for c in wanted if self._results[c].median_us is None)
        return next(failed, Measurement(Status.NOT_RECORDED))

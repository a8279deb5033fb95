"""Choose the first trials: a search's seeds, a prediction's short list, and the baselines.

The files that an engine ships hold the winners of other problems. Each entry votes for its
configuration, with a weight that falls with the distance between its problem and this problem. The
elected configurations are seeds.

A prediction compiles a small set of kernels that serves all points (`cover`).

The baselines are the configurations that the engine runs without this tuner. The makers of an
engine measured the entries of the files that they ship for a card, so a prediction does not replace
an entry near its size. Only --effort exhaustive predicts there at all.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
from typing import TypeVar

from tuner.devices.table import Device, find_device
from tuner.errors import UnknownDevice
from tuner.problems.points import Config, Part, Point
from tuner.problems.results import Compiled, Entry, Incumbent, MeasureKind, Status
from tuner.tuning.request import Effort, Request
from tuner.tuning.space import Space

# A vote halves with each unit of distance. An octave of batch size is one unit. No distance was
# fitted to a recording.
_HALF = 0.5
_LIMIT = 16  # seeds per point, more than any budget uses

Ballot = tuple[float, int, Config]  # distance, batch size, nearest legal configuration


def ballots_of(files: Iterable[tuple[float, Mapping[int, Config]]], space: Space) -> list[Ballot]:
    """Return the votes of files, each given as the distance of its problem and its entries."""
    nearest = cache(space.nearest)  # files share most of their configurations
    return [
        (distance, size, nearest(config))
        for distance, entries in files
        for size, config in entries.items()
    ]


def elect(ballots: Iterable[Ballot], batch_size: int, space: Space, at: Space) -> list[Config]:
    """Return the configurations with the most votes, snapped to `at`, the point's space.

    Ballots for configurations that run the same way at the point count together. An elected
    configuration halves the votes of its neighbours in the grid. Otherwise similar configurations
    would fill the list, and the search tries neighbours anyway.
    """
    settled = cache(at.settled)
    votes: dict[Config, float] = defaultdict(float)
    for distance, near_size, config in ballots:
        votes[settled(config)] += _HALF ** (distance + octaves(near_size, batch_size))
    elected: list[Config] = []
    while votes and len(elected) < _LIMIT:
        winner = max(votes, key=lambda config: (votes[config], config))
        elected.append(winner)
        del votes[winner]
        for near in space.neighbours(winner):
            if near in votes:
                votes[near] *= _HALF
    return [at.nearest(config) for config in elected]


def in_turn(
    known: Sequence[Config], modelled: Sequence[Config], voted: Sequence[Config]
) -> list[Config]:
    """Return distinct seeds: `known` first, then `modelled` and `voted` in turn.

    The model and the votes are wrong at different points, so neither comes before the other.
    """
    turns = (c for pair in zip_longest(modelled, voted) for c in pair if c is not None)
    return list(dict.fromkeys([*known, *turns]))


def device_distance(name: str, device: Device) -> int:
    """Return how far a file's device is from this device; an unknown device is far."""
    if name == device.name:
        return 0
    try:
        return 1 if find_device(name).target == device.target else 2
    except UnknownDevice:
        return 2


@cache
def octaves(a: int, b: int) -> float:
    """Return the distance of two sizes in octaves."""
    return abs(math.log2(a / b))


# The short list of a prediction

Kernel = tuple[Part, Config]  # one compiled kernel, which points share

WORST_EXCESS = 0.5  # log(time / best time) from which on a choice is as bad as none
# The worth of a need's best choice and of the next choices, which replace it if it does not fit or
# is slower once its registers are known.
RANKS = (1.0, 0.3, 0.1)


@dataclass(frozen=True)
class Need:
    """A point that wants a configuration; a weight of 1 is a whole need."""

    point: Point
    weight: float
    excess: Mapping[Config, float]  # log(score / best score)


def cover(wanted: Sequence[Need], budget: int) -> list[Kernel]:
    """Choose at most `budget` kernels greedily: the next kernel helps the needs most.

    A kernel's help only shrinks as others are chosen. So a kernel whose last known help is below
    the best current help need not be evaluated again.
    """
    served: list[list[float]] = [[WORST_EXCESS] * len(RANKS) for _ in wanted]
    users: dict[Kernel, list[tuple[int, float]]] = {}
    for index, need in enumerate(wanted):
        for config, excess in need.excess.items():
            if excess < WORST_EXCESS:
                users.setdefault((need.point.part, config), []).append((index, excess))

    def help_of(kernel: Kernel) -> float:
        return sum(
            wanted[index].weight * (_cost(served[index]) - _cost(_with(served[index], excess)))
            for index, excess in users[kernel]
        )

    queue = [(-help_of(kernel), kernel) for kernel in users]
    heapq.heapify(queue)
    chosen: list[Kernel] = []
    while queue and len(chosen) < budget:
        _, kernel = heapq.heappop(queue)
        help_now = help_of(kernel)
        if queue and help_now < -queue[0][0]:
            heapq.heappush(queue, (-help_now, kernel))
            continue
        chosen.append(kernel)
        for index, excess in users[kernel]:
            served[index] = _with(served[index], excess)
    return chosen


def _with(ranked: list[float], excess: float) -> list[float]:
    return sorted([*ranked, excess])[: len(RANKS)]


def _cost(ranked: list[float]) -> float:
    return sum(worth * excess for worth, excess in zip(RANKS, ranked, strict=True))


# A file's entry is taken to be tuned for sizes up to this many times its key, and down to this
# part of it. Some shipped files begin at 2,048: their first entry serves all smaller sizes.
NEAR = 2
KEPT = "the engine ships an entry tuned on this card; a prediction keeps it"


def tuned_near(size: int, keys: Iterable[int]) -> bool:
    """Say whether a file was tuned for about a size: one of its keys is near."""
    return any(size <= NEAR * key and key <= NEAR * size for key in keys)


B = TypeVar("B", bound="Baselines")


@dataclass(frozen=True)
class Baselines:
    """The engine's configurations at each point that a file must hold.

    An exported file must hold them all, because with a file the engine no longer uses its default,
    and picks the entry of the nearest size.
    """

    configs: Mapping[Point, Mapping[str, Config]]  # "default", and "shipped" if the engine ships it
    tuned_near: frozenset[Point]  # at which the shipped entry was tuned for about this batch size
    uncompiled: bool = True  # whether a prediction keeps shipped entries without compiling them

    def pass_over(
        self: B, request: Request, points: Sequence[Point]
    ) -> tuple[list[Entry], tuple[Point, ...], B]:
        """Split off the points at which a prediction tries nothing: return their shipped entries,
        the other points, and the other points' baselines.
        """
        predicts = request.source.kind is MeasureKind.PREDICT
        kept: list[Entry] = []
        if predicts and self.uncompiled and request.effort is not Effort.EXHAUSTIVE:
            kept = [_shipped(point, self.configs[point]) for point in points if self._ships(point)]
        known = {entry.point for entry in kept}
        left = tuple(point for point in points if point not in known)
        configs = {p: c for p, c in self.configs.items() if p not in known} if left else {}
        return kept, left, replace(self, configs=configs)

    def _ships(self, point: Point) -> bool:
        return point in self.tuned_near and "shipped" in self.configs[point]


def _shipped(point: Point, configs: Mapping[str, Config]) -> Entry:
    untried = {name: Incumbent(config, Status.INCUMBENT) for name, config in configs.items()}
    return Entry(
        point=point,
        config=configs["shipped"],
        status=Status.INCUMBENT,
        median_us=None,
        compiled=Compiled(Status.INCUMBENT),
        incumbents=untried,
        reason=KEPT,
    )

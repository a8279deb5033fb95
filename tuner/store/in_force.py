"""Which of several results counts, where a point has more than one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from tuner.problems import Attention, Point, Problem
from tuner.results import Status
from tuner.store.records import Published, Winner

# What a winner's status may be. Of several, what stands is a measured entry, else a predicted one,
# else one that nobody tuned.
WINNING = (Status.INCUMBENT, Status.PREDICTED, Status.OK)

Size = tuple[int, int]  # batch size, new tokens: all of its entries come from one source
Source = tuple[object, ...]


def in_force(found: Sequence[Winner]) -> list[Winner]:
    """Those that count, of all winners of their problems; see `Store.winners`."""
    best = _best(found)
    return [one for one in found if _source(one) == best[one.problem][_size(one.entry.point)]]


def points_in_force(found: Sequence[Published]) -> list[Published]:
    """The same of all that was published of their problems, with the points that count."""
    best = _best(found)

    def counting(one: Published) -> Published | None:
        mine, source = best[one.problem], _source(one)
        sizes = set(map(_size, one.points))
        kept = {size for size in sizes if mine[size] == source}
        if len(kept) == len(sizes):
            return one  # as nearly all are
        points = frozenset(point for point in one.points if _size(point) in kept)
        return replace(one, points=points) if points else None

    return [kept for one in found if (kept := counting(one))]


def _best(found: Iterable[Winner | Published]) -> Mapping[Problem, Mapping[Size, Source]]:
    best: dict[Problem, dict[Size, Source]] = defaultdict(dict)
    for one in sorted(found, key=_rank):  # of one size, the last stays
        best[one.problem].update(dict.fromkeys(map(_size, one.points), _source(one)))
    return best


def _size(point: Point) -> Size:
    return point.batch_size, point.new_tokens


def _source(one: Winner | Published) -> Source:
    if isinstance(one.problem, Attention):
        # Another workload has other cached tokens: only what was published at once was
        # chosen together. A gemm may be tuned in a run of its own.
        return one.run_id, one.published_at
    return one.environment, one.status


def _rank(one: Winner | Published) -> tuple[int, datetime, int]:
    return WINNING.index(one.status), one.published_at, one.run_id

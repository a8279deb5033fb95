"""Which of several results counts, where a point has more than one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tuner.problems.points import Point, Problem
from tuner.problems.records import Published, Winner
from tuner.problems.registry import family_of
from tuner.problems.results import WINNING, Status

Stored = Winner | Published
ResultGroup = tuple[str, str, Problem]  # device, engine, problem: each has results that count
Size = tuple[int, int]  # batch size, new tokens: all of its entries come from one source
Source = tuple[object, ...]
Counting = Mapping[ResultGroup, Mapping[Point, Source]]


def current_winners(found: Sequence[Winner]) -> list[Winner]:
    """The winners that count, of all winners of their problems.

    Entries that were chosen together stay together. At each batch size of a fused-MoE layer they
    come from one environment and have one status; at each batch size and new tokens of attention
    they come from one run. A measured result counts before a predicted one, and that before an
    untuned one. Among results of one status, the newest one with both gemms counts: when one gemm
    alone is tuned again in another environment, the older pair stays until the other gemm is tuned
    there too. A result with one gemm counts where no result of its status has both; what its own
    environment says of the other gemm without tuning it then stands beside it.
    """
    counting = _counting(found)
    return [one for one in found if counting[_group(one)].get(one.entry.point) == _source(one)]


def current_points(found: Sequence[Published]) -> list[Published]:
    """Like `current_winners`, for groups of winners: each keeps only its points that count."""
    counting = _counting(found)

    def kept(one: Published) -> frozenset[Point]:
        mine, source = counting[_group(one)], _source(one)
        return frozenset(point for point in one.points if mine.get(point) == source)

    left = ((one, kept(one)) for one in found)
    return [replace(one, points=points) for one, points in left if points]


def _counting(found: Iterable[Stored]) -> Counting:
    """The source that counts at each point that has one."""
    results: dict[ResultGroup, dict[Size, dict[Source, list[Stored]]]] = {}
    for one in found:
        sizes, source = results.setdefault(_group(one), {}), _source(one)
        for size in set(map(_size, one.points)):
            sizes.setdefault(size, {}).setdefault(source, []).append(one)
    counting: dict[ResultGroup, dict[Point, Source]] = {}
    for place, sizes in results.items():
        mine = counting.setdefault(place, {})
        for size, sources in sizes.items():
            best = max(sources, key=lambda source: _rank(size, sources[source]))
            # The best one last: it stands where both have a point.
            for source in (_untuned_beside(place, best), best):
                mine.update(dict.fromkeys(_points(size, sources.get(source, ())), source))
    return counting


def _group(one: Stored) -> ResultGroup:
    return one.environment.device, one.environment.engine, one.problem


def _size(point: Point) -> Size:
    return point.batch_size, point.new_tokens


def _points(size: Size, results: Iterable[Stored]) -> set[Point]:
    return {point for one in results for point in one.points if _size(point) == size}


def _source(one: Stored) -> Source:
    if not family_of(one.problem).joins_runs:
        # Another workload has other cached tokens: only what was published at once was
        # chosen together. A gemm may be tuned in a run of its own.
        return one.run_id, one.published_at
    return one.environment, one.status


def _untuned_beside(place: ResultGroup, source: Source) -> Source:
    """The entries that an environment has without tuning, which nobody chose in a pair."""
    return (source[0], Status.INCUMBENT) if family_of(place[2]).joins_runs else source


def _rank(size: Size, results: Collection[Stored]) -> tuple[object, ...]:
    """For results of one source: what counts is the source with the highest."""
    newest = max(results, key=lambda one: (WINNING.index(one.status), one.published_at, one.run_id))
    needed = newest.problem.parts if family_of(newest.problem).joins_runs else ()
    whole = {point.part for point in _points(size, results)}.issuperset(needed)
    return WINNING.index(newest.status), whole, newest.published_at, newest.run_id

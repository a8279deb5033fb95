"""Which result counts, where a point has several."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tuner.problems.points import Point, Problem
from tuner.problems.records import Published, Winner
from tuner.problems.registry import family_of
from tuner.problems.results import WINNING, Status

Stored = Winner | Published
ProblemKey = tuple[str, str, Problem]  # device, engine, problem
Size = tuple[int, int]  # batch size, new tokens: all current entries of a size have one source
Source = tuple[object, ...]
Sources = Mapping[ProblemKey, Mapping[Point, Source]]


def current_winners(found: Sequence[Winner]) -> list[Winner]:
    """The winners that count, out of all winners of their problems.

    Entries that were chosen together stay together. At each batch size of a fused-MoE layer, they
    come from one environment and have one status. At each batch size and number of new tokens of
    attention, they come from one run. A measured result counts before a predicted one, and a
    predicted one before an untuned one. Among results of one status, the newest one with both gemms
    counts. If one gemm is tuned again in another environment, the older pair counts until the other
    gemm is tuned there too. A result with one gemm counts where no result of its status has both;
    if its environment has an untuned entry for the other gemm, that entry counts beside it.
    """
    sources = _current_sources(found)
    return [one for one in found if sources[_key(one)].get(one.entry.point) == _source(one)]


def current_points(found: Sequence[Published]) -> list[Published]:
    """Like `current_winners`, for groups of winners: each group keeps only its current points."""
    sources = _current_sources(found)

    def kept(one: Published) -> frozenset[Point]:
        current, source = sources[_key(one)], _source(one)
        return frozenset(point for point in one.points if current.get(point) == source)

    left = ((one, kept(one)) for one in found)
    return [replace(one, points=points) for one, points in left if points]


def _current_sources(found: Iterable[Stored]) -> Sources:
    """The source of the current entry at each point that has one."""
    results: dict[ProblemKey, dict[Size, dict[Source, list[Stored]]]] = {}
    for one in found:
        sizes, source = results.setdefault(_key(one), {}), _source(one)
        for size in set(map(_size, one.points)):
            sizes.setdefault(size, {}).setdefault(source, []).append(one)
    current: dict[ProblemKey, dict[Point, Source]] = {}
    for key, sizes in results.items():
        chosen = current.setdefault(key, {})
        for size, by_source in sizes.items():
            best = max(by_source, key=lambda source: _rank(size, by_source[source]))
            # The best source comes last, so that it replaces an untuned entry at the same point.
            for source in (_untuned_beside(key[2], best), best):
                chosen.update(dict.fromkeys(_points(size, by_source.get(source, ())), source))
    return current


def _key(one: Stored) -> ProblemKey:
    return one.environment.device, one.environment.engine, one.problem


def _size(point: Point) -> Size:
    return point.batch_size, point.new_tokens


def _points(size: Size, results: Iterable[Stored]) -> set[Point]:
    return {point for one in results for point in one.points if _size(point) == size}


def _source(one: Stored) -> Source:
    if not family_of(one.problem).joins_runs:
        # Each workload has its own cached tokens, so only the entries that one run published were
        # chosen together.
        return one.run_id, one.published_at
    return one.environment, one.status  # each gemm may have been tuned in its own run


def _untuned_beside(problem: Problem, source: Source) -> Source:
    """The source of the untuned entries in the same environment, which were chosen in no pair."""
    return (source[0], Status.INCUMBENT) if family_of(problem).joins_runs else source


def _rank(size: Size, results: Collection[Stored]) -> tuple[object, ...]:
    """The rank of one source's results at a size. The source with the highest rank is current."""
    newest = max(results, key=lambda one: (WINNING.index(one.status), one.published_at, one.run_id))
    needed = newest.problem.parts if family_of(newest.problem).joins_runs else ()
    whole = {point.part for point in _points(size, results)}.issuperset(needed)
    return WINNING.index(newest.status), whole, newest.published_at, newest.run_id

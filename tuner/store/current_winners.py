"""Choose the result that counts, if a point has several."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from tuner.problems.points import Part, Point, Problem
from tuner.problems.registry import family_of
from tuner.problems.results import (
    SHELF_RUN,
    UNTUNED,
    WINNING,
    Environment,
    Published,
    Status,
    Winner,
)

Stored = Winner | Published
ProblemKey = tuple[str, str, Problem]  # device, engine, problem
Size = tuple[int, int]  # batch size, new tokens: all current entries of a size have one source
Source = tuple[object, ...]
Kernels = tuple[str, str, str]  # engine version, Triton, hash of the kernels
_Worth = tuple[int, bool, datetime, int]  # rank of the status, own, when it was published, run
_NOWHERE: frozenset[Point] = frozenset()
Current = Mapping[Source, frozenset[Point]]  # the points at which a source's entries are current


def current_winners(found: Sequence[Winner]) -> list[Winner]:
    """Return the winners that count, out of all winners of their problems.

    A file is for one version of the kernels, so all winners of a problem are for one version: the
    newest that has a measured result, else the newest that has a predicted result.

    Entries that were chosen together stay together. At each batch size of a fused-MoE layer, they
    come from the same environment and have the same status. At each batch size and number of new
    tokens of attention, they come from the same run. A measured result counts before a predicted
    result, and a predicted result before an untuned result. Among results of equal status, the
    store's count before the shelf's, and the newest with both gemms counts. If a gemm is tuned
    again in another environment, the older pair counts until the other gemm is tuned there too. A
    result with a single gemm counts if no result of its status has both; if there is an untuned
    entry for the other gemm, that entry counts beside it, at best its environment's.
    """
    best: dict[ProblemKey, tuple[_Worth, Kernels]] = {}
    for one in found:
        rank = _worth(one), kernels(one.environment)
        best[_key(one)] = max(rank, best.get(_key(one), rank))
    return _counting([w for w in found if kernels(w.environment) == best[_key(w)][1]])


def beside_predictions(current: Sequence[Winner], found: Sequence[Winner]) -> list[Winner]:
    """Give each predicted winner of `current` its `unpredicted` out of `found`."""
    guessed = {(_key(w), kernels(w.environment)) for w in current if w.status is Status.PREDICTED}
    others = [
        w
        for w in found
        if w.status is not Status.PREDICTED and (_key(w), kernels(w.environment)) in guessed
    ]
    known = {(_key(w), w.entry.point): w for w in _counting(others)}
    return [
        replace(w, unpredicted=known.get((_key(w), w.entry.point)))
        if w.status is Status.PREDICTED
        else w
        for w in current
    ]


def _counting(found: Sequence[Winner]) -> list[Winner]:
    current = _current(found)
    return [w for w in found if w.entry.point in current[_key(w)].get(_source(w), _NOWHERE)]


def current_points(found: Sequence[Published]) -> list[Published]:
    """Return groups of winners, each with its current points alone.

    At a current point no result of another group counts before the group's. The groups may be for
    several versions of the kernels.
    """
    current = _current(found)
    left = ((one, one.points & current[_key(one)].get(_source(one), _NOWHERE)) for one in found)
    return [replace(one, points=points) for one, points in left if points]


def _current(found: Iterable[Stored]) -> Mapping[ProblemKey, Current]:
    """Return the points at which each source's entries are current, by problem."""
    results: dict[ProblemKey, dict[Source, list[Stored]]] = {}
    for one in found:
        results.setdefault(_key(one), {}).setdefault(_source(one), []).append(one)
    return {key: _current_of(key[2], by_source) for key, by_source in results.items()}


def _current_of(problem: Problem, results: Mapping[Source, Collection[Stored]]) -> Current:
    """Return the current points of a problem's results, by source."""
    every = [one for some in results.values() for one in some]
    points = every[0].points
    if len(every) == len(results) and all(one.points == points for one in every):
        # As in most stores, each source has one result, at the same points: the best is current at
        # all.
        best = max(results, key=lambda source: _worth(next(iter(results[source]))))
        return {best: frozenset(points)}
    joins_runs = family_of(problem).joins_runs
    needed = problem.parts if joins_runs else ()
    sources = list(results)  # from here on a number, because a source takes long to hash
    sizes: dict[Size, dict[int, list[tuple[Stored, Point]]]] = {}
    for number, source in enumerate(sources):
        for one in results[source]:
            for point in one.points:
                at_size = sizes.setdefault(size_of(point), {})
                at_size.setdefault(number, []).append((one, point))
    current: dict[Point, int] = {}
    for by_number in sizes.values():
        first = max(by_number, key=lambda number: _rank(by_number[number], needed))
        # The best source comes last, so that it replaces untuned entries at the same points.
        for chosen in (*_beside(first, by_number, sources, needed), first):
            current |= {point: chosen for _, point in by_number[chosen]}
    return {
        source: frozenset(point for point, chosen in current.items() if chosen == number)
        for number, source in enumerate(sources)
    }


def _beside(
    first: int,
    by_number: Mapping[int, Collection[tuple[Stored, Point]]],
    sources: Sequence[Source],
    needed: Collection[Part],
) -> list[int]:
    """Return the untuned results at a size that count beside a gemm that was tuned alone, the best
    last.

    They were chosen in no pair. They are for the same kernels, and best from the same environment.
    """
    if {point.part for _, point in by_number[first]}.issuperset(needed):
        return []
    mine, _ = sources[first]
    assert isinstance(mine, Environment)  # of a family that joins runs
    ranked = []
    for number, results in by_number.items():
        place, status = sources[number]
        assert isinstance(place, Environment)
        if status in UNTUNED and kernels(place) == kernels(mine):
            ranked.append((place == mine, _rank(results, needed), number))
    return [number for *_, number in sorted(ranked)]


def size_of(point: Point) -> Size:
    """Return the size at which a problem's entries count together."""
    return point.batch_size, point.new_tokens


def _key(one: Stored) -> ProblemKey:
    return one.environment.device, one.environment.engine, one.problem


def _source(one: Stored) -> Source:
    if not family_of(one.problem).joins_runs:
        # Each workload has its own cached tokens, so only the entries that one run published were
        # chosen together.
        return one.run_id, one.published_at
    return one.environment, one.status  # each gemm may have been tuned in its own run


def kernels(environment: Environment) -> Kernels:
    """Return the version of the kernels that an environment's results are for."""
    return environment.engine_version, environment.triton, environment.kernel_hash


def _rank(
    results: Collection[tuple[Stored, Point]], needed: Collection[Part]
) -> tuple[object, ...]:
    """Return the rank of a source's results at a size: the highest rank's source is current."""
    status, *newest = max(_worth(one) for one, _ in results)
    whole = {point.part for _, point in results}.issuperset(needed)
    return status, whole, *newest


def _worth(one: Stored) -> _Worth:
    own = one.run_id != SHELF_RUN
    return WINNING.index(one.status), own, one.published_at, one.run_id

"""Propose configurations and learn from their times.

Each point of a job goes through rounds. The first round tries seeds. Later rounds try the
configurations that a surrogate expects most of: neighbours of the best so far, suggestions of
Optuna's TPE, and a sample of the space. The surrogate has learnt from the times of the point and of
its neighbours, and from a device model if the family has a model. Such a round depends only on the
point's earlier rounds and on the other points' rounds before the last, never on the order or time
at which results arrive. The last round waits for the neighbours, and tries their winners. So a
resumed search that is told its stored results first ends as it would have ended uninterrupted, and
a slow compile delays only one point until the last round.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tuner.problems.points import Candidate, Config, Part, Point
from tuner.problems.results import Measurement, Status
from tuner.tuning.request import TRIES, Effort
from tuner.tuning.space import Space

# A kernel that fails to compile or to fit fails at every batch size. A kernel that ended two
# processes would probably end two more.
_FAILS_EVERYWHERE = {
    *(Status.COMPILE_ERROR, Status.COMPILE_TIMEOUT, Status.OUT_OF_RESOURCES, Status.CRASHED),
}
# A point's rounds look at a sample of the space, and at the neighbours of the fastest so far. A
# sample, because a prediction takes the parent 0.1 ms; sglang's own grid is smaller.
_POOL, _BEST = 1_300, 8
# From this share of its tries on, a point looks at the neighbours of this many alone: one stage
# more may change a time by a tenth, and no model knows.
_LATE, _LATE_BEST = 0.5, 3
_LEARN_FROM = 2  # points on either side of a point whose times a round learns from
# The surrogate learns log(time / best time at the point). Above this value all are equally slow:
# hopeless times must not decide how much good times may differ.
_HOPELESS = 0.4


def sample_of(space: Space, point: Point, seed: int) -> Sequence[Config]:
    """Return the part of a space that all rounds of a point look at."""
    rng = random.Random(f"{seed}/{point}")  # noqa: S311 (no secret)
    return rng.sample(space.configs(), min(_POOL, len(space)))


class Search:
    """Candidates for all points of a job, within one budget.

    Points of one part share kernels: a configuration is compiled once for all of them.
    """

    def __init__(
        self,
        spaces: Mapping[Part, Space],
        points: Sequence[Point],
        seeds: Mapping[Point, Sequence[Config]],
        budget: Budget,
        seed: int,
        narrowed: Mapping[Point, Space] | None = None,
        model: Model | None = None,
    ) -> None:
        """Begin a search.

        `narrowed`: the spaces of points whose space is smaller than their part's. With a `model`,
        later rounds propose only configurations that the model has a time for.
        """
        self._budget = budget
        self._seed = seed
        at = {point: spaces[point.part] for point in points} | dict(narrowed or {})
        self._tracks = [
            PointSearch(
                point, at[point], seeds.get(point, ()), sample_of(at[point], point, seed), model
            )
            for point in sorted(set(points))
        ]
        self._results: dict[Candidate, Measurement] = {}
        self._kernels: list[frozenset[tuple[Part, Config]]] = [frozenset()]  # before each round

    def ask(self) -> list[Candidate]:
        """Return every candidate that can be proposed now; none when done, or while waiting for
        tells.

        A candidate is proposed at most once, and never after it was told.
        """
        asked: list[Candidate] = []
        while ready := self._ready():
            for track in ready:
                configs = self._next_round(track)
                track.rounds.append(configs)
                asked += [c for c in self._candidates(track, configs) if c not in self._results]
        return asked

    def tell(self, candidate: Candidate, measurement: Measurement) -> None:
        """Take a result. The candidate need not have been proposed yet."""
        self._results.setdefault(candidate, measurement)

    def _ready(self) -> list[PointSearch]:
        """Return the tracks that have all results on which their next round depends."""
        finished = min((len(track.rounds) for track in self._tracks), default=0)  # of every point
        if finished and not any(track.rounds[finished - 1] for track in self._tracks):
            return []  # no point proposed anything for a whole round: done
        behind = (track for track in self._tracks if len(track.rounds) == finished)
        return [track for track in behind if self._may_go_on(track)]

    def _may_go_on(self, track: PointSearch) -> bool:
        """Return whether all results are there on which a track's next round depends."""
        round_ = len(track.rounds)
        needed = self._around(track, 1) if self._may_exchange(track, round_) else [track]
        return all(
            candidate in self._results
            for other in needed
            # It had the results of the rounds before this last round when it began the last round.
            for last in other.rounds[:round_][-1:]
            for candidate in self._candidates(other, last)
        )

    def _may_exchange(self, track: PointSearch, round_: int) -> bool:
        """Return whether a track spent its tries in the last round."""
        most = self._most(track)
        return round_ > 0 and len(track.before(round_ - 1)) < most <= len(track.before(round_))

    @staticmethod
    def _candidates(track: PointSearch, configs: Sequence[Config]) -> Iterator[Candidate]:
        return (Candidate(track.point, config) for config in configs)

    def _next_round(self, track: PointSearch) -> list[Config]:
        """Return the track's next round, within the budget."""
        round_ = len(track.rounds)
        tried = track.before(round_)
        allowed = self._most(track) - len(tried)
        if allowed <= 0:
            return self._exchange(track, round_) if self._may_exchange(track, round_) else []
        allowed = min(allowed, self._budget.per_round if round_ else self._budget.seeds)
        credit = self._credit(track, round_)
        compiled = {c for part, c in self._compiled(round_) if part is track.point.part}
        seen = {*tried, *self._broken(track, round_)}
        configs: list[Config] = []
        passed_over = seen if credit else seen.union(set(track.space.configs()) - compiled)
        for config in self._sources(track, round_, passed_over):
            if config in seen:
                continue
            seen.add(config)
            if config not in compiled:
                if not credit:
                    continue
                credit -= 1
            configs.append(config)
            if len(configs) >= allowed:
                break
        return configs

    def _exchange(self, track: PointSearch, round_: int) -> list[Config]:
        """Return the neighbours' winners that a track has not tried: a neighbour may have found its
        winner in its last round.

        All these kernels are compiled.
        """
        tried = {*track.before(round_), *self._broken(track, round_)}
        near = map(track.space.nearest, self._winners_nearby(track, round_ + 1))
        compiled = {c for part, c in self._compiled(round_) if part is track.point.part}
        return [c for c in dict.fromkeys(near) if c in compiled and c not in tried]

    def _sources(
        self, track: PointSearch, round_: int, passed_over: Collection[Config]
    ) -> Iterator[Config]:
        """Yield configurations worth trying, best first, including tried and unaffordable ones.

        The surrogate skips the configurations of `passed_over`.
        """
        if not round_:
            yield from map(track.space.nearest, track.seeds)
        elif known := list(self._known(track, round_)):
            yield from map(track.space.nearest, self._winners_nearby(track, round_))
            from tuner.tuning.surrogate import Surrogate  # noqa: PLC0415  # predictions need none

            places, values = zip(*known, strict=True)
            pool = track.likely(c for c in self._pool(track, round_) if c not in passed_over)
            wanted = [track.place(config) for config in pool]
            yield from (pool[at] for at in Surrogate(places, values).promising(wanted))
        rng = self._random(track.point, round_)
        yield from rng.sample(track.space.configs(), len(track.space))

    def _random(self, point: Point, round_: int) -> random.Random:
        return random.Random(f"{self._seed}/{point}/{round_}")  # noqa: S311 (no secret)

    def _winners_nearby(self, track: PointSearch, round_: int) -> Iterator[Config]:
        """Yield the best so far at the next smaller and the next larger point of the part."""
        for other in self._around(track, 1):
            if other is not track:
                yield from itertools.islice(self._times(other, round_ - 1), self._budget.nearby)

    def _around(self, track: PointSearch, most: int) -> list[PointSearch]:
        """Return a track and up to `most` tracks of its part on either side of it."""
        others = [other for other in self._tracks if other.point.part is track.point.part]
        here = others.index(track)
        return others[max(here - most, 0) : here + most + 1]

    def _known(self, track: PointSearch, round_: int) -> Iterator[tuple[list[float], float]]:
        """Yield places and values at the point and at its neighbours, for the surrogate."""
        for other in self._around(track, _LEARN_FROM):
            # Without the other point's last round, which may still be running.
            times = self._times(other, round_ if other is track else round_ - 1)
            best = min(times.values(), default=0.0)
            for config, time_us in times.items():
                slower = math.log(time_us / best)
                yield other.place(config), min(slower, _HOPELESS)

    def _times(self, track: PointSearch, round_: int) -> dict[Config, float]:
        """Return the microseconds of configurations timed at a point before a round, the fastest
        first.
        """
        results = {c: self._results[Candidate(track.point, c)] for c in track.before(round_)}
        timed = [(m.median_us, c) for c, m in results.items() if m.median_us is not None]
        return {config: time_us for time_us, config in sorted(timed)}

    def _pool(self, track: PointSearch, round_: int) -> dict[Config, None]:
        """Return the configurations that a round looks at: neighbours of the best so far, and a
        sample.

        The last rounds look at the neighbours of the very best alone.
        """
        space, tried = track.space, track.before(round_)
        late = len(tried) >= _LATE * self._most(track)
        best = itertools.islice(self._times(track, round_), _LATE_BEST if late else _BEST)
        near = [n for c in best for n in (*space.neighbours(c), *space.exchanges(c))]
        if late:
            return dict.fromkeys(near)
        from tuner.tuning.surrogate import suggestions  # noqa: PLC0415

        results = {config: self._results[Candidate(track.point, config)] for config in tried}
        suggested = suggestions(space, results, self._random(track.point, round_).getrandbits(32))
        return dict.fromkeys([*near, *suggested, *track.sample])

    def _broken(self, track: PointSearch, round_: int) -> set[Config]:
        """Return the configurations of the space that failed, or that are sure not to fit."""
        kernels = {
            config: self._results[Candidate(other.point, config)].status
            for other in self._tracks
            if other.point.part is track.point.part
            for config in other.before(round_ if other is track else round_ - 1)
        }
        broken = {config for config, status in kernels.items() if status in _FAILS_EVERYWHERE}
        too_large = [c for c, status in kernels.items() if status is Status.OUT_OF_RESOURCES]
        return broken.union(*map(track.space.as_large_as, too_large))

    def _credit(self, track: PointSearch, round_: int) -> int:
        """Return how many kernels the track may add in a round: its share of the rest of the
        budget.

        Two points that propose the same kernel in the same round both pay for it and get one kernel
        back in the next round. So the order of proposals never matters to the budget.
        """
        left = self._budget.kernels - len(self._compiled(round_))
        active = [t for t in self._tracks if len(t.before(round_)) < self._most(t)]
        share, extra = divmod(left, len(active))
        return share + ((active.index(track) + round_) % len(active) < extra)

    def _most(self, track: PointSearch) -> int:
        return min(self._budget.per_point, len(track.space))

    def _compiled(self, round_: int) -> frozenset[tuple[Part, Config]]:
        """Return the kernels that were proposed before a round, at any point."""
        while len(self._kernels) <= round_:
            last = len(self._kernels) - 1
            fresh = ((t.point.part, config) for t in self._tracks for config in t.rounds[last])
            self._kernels.append(self._kernels[last].union(fresh))
        return self._kernels[round_]


@dataclass(frozen=True)
class Budget:
    """How much a search may spend."""

    # Configurations tried at a point, including failures. The neighbours' winners come after them.
    per_point: int
    kernels: int  # kernels compiled in total; a configuration counts once for each part
    seeds: int  # tries in a point's first round: seeds, then random configurations
    per_round: int = 5  # tries in each later round
    nearby: int = 1  # how many of the best at each neighbouring point a round tries first

    @property
    def most(self) -> int:
        """Return the most configurations tried at a point, with its two neighbours' winners."""
        return self.per_point + 2 * self.nearby


def budget_for(effort: Effort, points: int, space_size: int) -> Budget:
    """Return the budget of an effort for a number of points and of configurations in the space."""
    if effort is Effort.QUICK:
        return Budget(TRIES[effort], kernels=max(100, 10 * points), seeds=8, per_round=4)
    if effort is Effort.STANDARD:
        return Budget(TRIES[effort], kernels=max(250, 25 * points), seeds=12)
    return Budget(space_size, kernels=points * space_size, seeds=space_size)


# Predicted microseconds of the configurations at a point that will probably fit.
Model = Callable[[Point, Sequence[Config]], Mapping[Config, float]]
# The weight of an octave: of a parameter, of the predicted time, of the point's size. They were
# chosen on the recordings that benchmarks/held_out.py calls SEEN; docs/results.md has the results
# of the others.
_PER_OCTAVE, _PER_PREDICTED, _PER_SIZE = 0.9, 1.6, 0.4


@dataclass(eq=False)
class PointSearch:
    """The rounds of one point."""

    point: Point
    space: Space
    seeds: Sequence[Config]
    sample: Sequence[Config]  # of the space; each round looks at these
    model: Model | None
    rounds: list[list[Config]] = field(default_factory=list)
    _predicted: dict[Config, float | None] = field(default_factory=dict)
    _places: dict[Config, list[float]] = field(default_factory=dict)

    def before(self, round_: int) -> list[Config]:
        """List the configurations that were proposed before a round, in order."""
        return list(itertools.chain.from_iterable(self.rounds[:round_]))

    def likely(self, configs: Iterable[Config]) -> list[Config]:
        """Keep the configurations that will fit, as far as the model knows."""
        some = list(configs)
        if self.model is None:
            return some
        new = [config for config in some if config not in self._predicted]
        found = self.model(self.point, new) if new else {}
        self._predicted.update((config, found.get(config)) for config in new)
        return [config for config in some if self._predicted[config]]

    def place(self, config: Config) -> list[float]:
        """Return a configuration's place for the surrogate, once the point's first
        round is known.
        """
        if config not in self._places:
            self._places[config] = self._place(config)
        return self._places[config]

    def _place(self, config: Config) -> list[float]:
        place = [_PER_OCTAVE * at for at in self.space.place(config)]
        place += [_PER_SIZE * math.log2(max(size, 1)) for size in _sizes(self.point)]
        if self.model is not None:
            best = self._best_of_first
            us = self._predicted[config] if self.likely([config]) else best
            place.append(_PER_PREDICTED * math.log2(us / best) if us and best else 0.0)
        return place

    @cached_property
    def _best_of_first(self) -> float | None:
        first = [self._predicted[c] for c in self.likely(self.rounds[0])]
        return min((us for us in first if us), default=None)


def _sizes(point: Point) -> tuple[int, int, int]:
    return point.batch_size, point.new_tokens, point.cached_tokens

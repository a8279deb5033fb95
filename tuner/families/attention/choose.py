"""Choose every point's entry from attention's trials: a configuration for each bucket.

A configuration replaces the engine's default only if it is faster over the whole bucket by more
than the noise, and at no point slower by more than the noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.errors import NothingFits
from tuner.families.attention.buckets import Bucket
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Entry, Incumbent, Trial, as_incumbent, without_time
from tuner.tuning.tune import STAYS

FINALISTS = 4  # per bucket, besides the engine's default constants


@dataclass(frozen=True)
class AttentionChooser:
    """`choose` and `finalists` for a run."""

    buckets: Sequence[Bucket]
    defaults: Mapping[Point, Config]  # the engine's constants
    noise: float  # relative; a smaller gain does not count
    previous: Mapping[Point, Config] | None = None  # the stored choices when the run began

    def choose(self, trials: Sequence[Trial]) -> list[Entry]:
        """Return an entry for each point. Raises NothingFits if nothing runs at all points of a
        bucket.
        """
        by_candidate = {trial.candidate: trial for trial in trials}
        return [
            entry
            for bucket in self.buckets
            for entry in self._entries(_BucketTrials(bucket, by_candidate, self.defaults))
        ]

    def finalists(self, trials: Sequence[Trial], entries: Sequence[Entry]) -> list[Trial]:
        """Return the trials of each bucket's default, stored, chosen and next best
        configurations.
        """
        by_candidate = {trial.candidate: trial for trial in trials}
        chosen = {entry.point: entry.config for entry in entries}
        found = []
        for bucket in self.buckets:
            field = _BucketTrials(bucket, by_candidate, self.defaults)
            ranked = [config for _, config in field.ranked()][:FINALISTS]
            named = [chosen[bucket.representative], *ranked, *field.default_configs]
            wanted = dict.fromkeys([*named, *self._stored_at(bucket)])
            found += [
                by_candidate[Candidate(point, config)]
                for config in wanted
                if field.times(config) is not None
                for point in bucket.points
            ]
        return found

    def _entries(self, field: _BucketTrials) -> Iterator[Entry]:
        ranked = field.ranked(self.noise)
        default_us = field.default_times()
        if not ranked and default_us is None:
            point = field.bucket.representative
            raise NothingFits(f"no configuration compiles and fits for {point}")
        best = ranked[0] if ranked else None
        keep = default_us is not None and (best is None or best[0] >= 1 - self.noise)
        stored = self._stored(field, ranked)
        if stored is not None:
            keep, best = False, stored
        for point in field.bucket.points:
            config = field.defaults[point] if keep or best is None else best[1]
            trial = field.trials[Candidate(point, config)]
            default = field.defaults[point]
            own = as_incumbent(default, field.trials.get(Candidate(point, default)))
            yield Entry(
                point=point,
                config=config,
                status=trial.measurement.status,
                median_us=trial.measurement.median_us,
                compiled=trial.compiled,
                incumbents={"default": own},
                reason=_reason(trial, own, keep) + (f"; {STAYS}" if stored else ""),
            )

    def _stored(
        self, field: _BucketTrials, ranked: Sequence[tuple[float, Config]]
    ) -> tuple[float, Config] | None:
        """Return the stored configuration of a bucket, unless another is faster by more than the
        noise or the engine's own is faster at all.
        """
        others = set(self._stored_at(field.bucket)).difference(field.default_configs)
        found = [(cost, config) for cost, config in ranked if config in others]
        stays = found and ranked[0][0] >= found[0][0] * (1 - self.noise)
        own = field.default_times()
        return found[0] if stays and (own is None or found[0][0] <= 1) else None

    def _stored_at(self, bucket: Bucket) -> list[Config]:
        """Return the stored configuration of a bucket, if all its points have the same."""
        here = {(self.previous or {}).get(point) for point in bucket.points}
        return [config for config in here if config is not None] if len(here) == 1 else []


@dataclass(frozen=True)
class _BucketTrials:
    """A bucket's trials."""

    bucket: Bucket
    trials: Mapping[Candidate, Trial]
    defaults: Mapping[Point, Config]

    @property
    def default_configs(self) -> list[Config]:
        """Return the engine's configurations; several if the engine distinguishes the points."""
        return list(dict.fromkeys(self.defaults[point] for point in self.bucket.points))

    def times(self, config: Config) -> list[float] | None:
        """Return the microseconds at each point, or None if a point has no time."""
        return self._times(Candidate(point, config) for point in self.bucket.points)

    def default_times(self) -> list[float] | None:
        """Return the microseconds of the default constants at each point, or None if a point has no
        time.
        """
        return self._times(Candidate(p, self.defaults[p]) for p in self.bucket.points)

    def _times(self, candidates: Iterable[Candidate]) -> list[float] | None:
        found = [self.trials.get(candidate) for candidate in candidates]
        times = [trial.measurement.median_us for trial in found if trial is not None]
        known = [time for time in times if time is not None]
        return known if len(known) == len(found) else None

    def ranked(self, slack: float = float("inf")) -> list[tuple[float, Config]]:
        """Return (cost, config) in order of cost, without configurations that are slower than the
        default at any point by more than `slack`.
        """
        known = self.default_times()
        default_us: Sequence[float | None] = known or [None] * len(self.bucket.points)
        found = []
        here = set(self.bucket.points)
        for config in {c.config for c in self.trials if c.point in here}:
            times = self.times(config)
            if times is None:
                continue
            if known and any(t > u * (1 + slack) for t, u in zip(times, known, strict=True)):
                continue
            found.append((self.bucket.cost(times, default_us), config))
        return sorted(found)


def _reason(trial: Trial, own: Incumbent, keep: bool) -> str:
    if keep:
        return "the engine's own constants are as fast, within the noise"
    if own.median_us is None or trial.measurement.median_us is None:
        return without_time("the engine's own constants", [own])
    return (
        f"{own.median_us / trial.measurement.median_us:.3f}x as fast as the engine's own constants"
    )

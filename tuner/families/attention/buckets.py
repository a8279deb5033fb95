"""Group attention's points into buckets: points that a running engine cannot tell apart.

When an engine launches a kernel, it knows the number of sequences and the most new tokens of a
sequence, but not how many tokens each has cached; inside a CUDA graph it cannot know. So points
that differ only in their cached tokens share a configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.families.attention.problem import Attention, AttentionPart, bucket_of
from tuner.families.attention.workloads import WorkPoint
from tuner.problems.points import Candidate, Config, Part, Point
from tuner.problems.results import Measurement, Status
from tuner.tuning.tune import Strategy


@dataclass(frozen=True)
class Bucket:
    """Points of a kernel that share a configuration, with their weights."""

    points: tuple[Point, ...]
    weights: tuple[float, ...]

    @property
    def representative(self) -> Point:
        """Return the point that stands for all points of the bucket."""
        return self.points[0]

    @property
    def part(self) -> Part:
        return self.representative.part

    def cost(self, times_us: Sequence[float], default_us: Sequence[float | None]) -> float:
        """Return the weighted mean over the points of a time divided by the engine's default time.

        If a default time is missing (None), no time is divided and the cost is in microseconds,
        because ratios and microseconds cannot be added.
        """
        known = [us for us in default_us if us is not None]
        units = known if len(known) == len(default_us) else [1.0] * len(default_us)
        parts = (w * t / u for w, t, u in zip(self.weights, times_us, units, strict=True))
        return sum(parts) / sum(self.weights)


def buckets_of(problem: Attention, points: Iterable[WorkPoint]) -> list[Bucket]:
    """Return the buckets of every part of the problem, in order of part and size."""
    found: dict[tuple[AttentionPart, int, int], dict[Point, float]] = {}
    for work in points:
        for part in problem.parts:
            asked = Point(work.batch_size, part, work.new_tokens, work.cached_tokens)
            bucket = bucket_of(asked)
            point = replace(asked, new_tokens=bucket[2])
            same = found.setdefault(bucket, {})
            same[point] = same.get(point, 0.0) + work.weight
    return [
        Bucket(tuple(same), tuple(same.values()))
        for _, same in sorted(found.items(), key=lambda item: (item[0][0].value, *item[0][1:]))
    ]


class BucketedStrategy:
    """Makes a strategy over points from a strategy over buckets: each proposal is tried at all
    points.

    The inner strategy proposes for a bucket's `representative`. It is told the bucket's cost once
    the engine's default constants have a result at each point.
    """

    def __init__(
        self, inner: Strategy, buckets: Sequence[Bucket], defaults: Mapping[Point, Config]
    ) -> None:
        self._inner, self._defaults = inner, defaults
        self._bucket = {point: bucket for bucket in buckets for point in bucket.points}
        self._results: dict[Candidate, Measurement] = {}
        self._waiting: dict[Bucket, list[Config]] = {}  # complete, but a default time is missing

    def ask(self) -> list[Candidate]:
        """Return the inner strategy's proposals as candidates for every point of their buckets."""
        return [
            Candidate(point, proposal.config)
            for proposal in self._inner.ask()
            for point in self._bucket[proposal.point].points
        ]

    def tell(self, candidate: Candidate, measurement: Measurement) -> None:
        """Keep the measurement, and tell the inner strategy once the bucket is complete."""
        self._results.setdefault(candidate, measurement)
        bucket = self._bucket.get(candidate.point)
        if bucket is None or self._all(bucket, candidate.config) is None:
            return
        self._waiting.setdefault(bucket, []).append(candidate.config)
        default_us = self._default_us(bucket)
        if default_us is not None:
            for config in self._waiting.pop(bucket):
                self._inner.tell(
                    Candidate(bucket.representative, config),
                    self._whole(bucket, config, default_us),
                )

    def _all(self, bucket: Bucket, config: Config) -> list[Measurement] | None:
        found = [self._results.get(Candidate(point, config)) for point in bucket.points]
        known = [measurement for measurement in found if measurement is not None]
        return known if len(known) == len(found) else None

    def _default_us(self, bucket: Bucket) -> list[float | None] | None:
        """Return the microseconds of the engine's default constants at each point, None if they do
        not run there. Return None for the whole while a result is missing.
        """
        found = [self._results.get(Candidate(p, self._defaults[p])) for p in bucket.points]
        known = [measurement for measurement in found if measurement is not None]
        return [m.median_us for m in known] if len(known) == len(found) else None

    def _whole(
        self, bucket: Bucket, config: Config, default_us: Sequence[float | None]
    ) -> Measurement:
        measurements = self._all(bucket, config)
        assert measurements is not None  # it is complete
        times = [m.median_us for m in measurements if m.median_us is not None]
        if len(times) < len(measurements):
            return next(m for m in measurements if m.median_us is None)
        return Measurement(Status.OK, bucket.cost(times, default_us))

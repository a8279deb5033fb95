"""Attention's points, gathered as a running engine can tell them apart.

When a kernel is launched, an engine knows its batch's sequences and the longest of their new
tokens; how much each has cached it does not, and inside a CUDA graph it cannot. So points that
differ in cached tokens alone get one configuration, which must serve all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.families.attention.problem import Attention, Stage, bucket_of
from tuner.families.attention.workloads import WorkPoint
from tuner.problems.points import Candidate, Config, Part, Point
from tuner.problems.results import Measurement, Status
from tuner.tuning.tune import Strategy


@dataclass(frozen=True)
class Bucket:
    """Points that share a configuration, with the weight of each; all of one kernel."""

    points: tuple[Point, ...]
    weights: tuple[float, ...]

    @property
    def representative(self) -> Point:
        """The point that stands for all."""
        return self.points[0]

    @property
    def part(self) -> Part:
        return self.representative.part

    def cost(self, times_us: Sequence[float], default_us: Sequence[float | None]) -> float:
        """The weighted mean of times, each over the time of the engine's own constants there.

        Microseconds, where the engine's constants have no time at one of the points (None): a
        ratio at one point and microseconds at another could not be added.
        """
        known = [us for us in default_us if us is not None]
        units = known if len(known) == len(default_us) else [1.0] * len(default_us)
        parts = (w * t / u for w, t, u in zip(self.weights, times_us, units, strict=True))
        return sum(parts) / sum(self.weights)


def buckets_of(problem: Attention, points: Iterable[WorkPoint]) -> list[Bucket]:
    """The buckets of every stage of the problem, in order of part and size."""
    found: dict[tuple[Stage, int, int], dict[Point, float]] = {}
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
    """A strategy over points from one over buckets: each proposal is tried at all points.

    The inner strategy proposes for a bucket's `representative`. It is told the bucket's cost once
    the engine's own constants have a time at each point.
    """

    def __init__(
        self, inner: Strategy, buckets: Sequence[Bucket], defaults: Mapping[Point, Config]
    ) -> None:
        self._inner, self._defaults = inner, defaults
        self._bucket = {point: bucket for bucket in buckets for point in bucket.points}
        self._results: dict[Candidate, Measurement] = {}
        self._waiting: dict[Bucket, list[Config]] = {}  # complete, but their unit is not known

    def ask(self) -> list[Candidate]:
        """Every point's candidates of what the inner strategy proposes."""
        return [
            Candidate(point, proposal.config)
            for proposal in self._inner.ask()
            for point in self._bucket[proposal.point].points
        ]

    def tell(self, candidate: Candidate, measurement: Measurement) -> None:
        """Keep the measurement; the inner strategy hears of it once its bucket is complete."""
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
        """Microseconds of the engine's own constants at each point, or None while some have no
        result; a None in the list is a point where they do not run.
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

"""Time and choose the configurations that decode can run for a number of sequences.

Inside a CUDA graph the engine knows the number of sequences and nothing more. So the constants of
both kernels and the room for splits are fixed for that number. The number of splits follows the
length. A choice replaces the engine's own rule and constants only if both kernels together are
faster over all lengths by more than the noise, and at no length slower by more than the noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tuner.errors import NothingFits
from tuner.families.attention.buckets import Bucket
from tuner.families.attention.problem import AttentionPart
from tuner.families.attention.splits import KV_SPLITS, MAX_KV_SPLITS, constants_of, with_splits
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Entry, Incumbent, Trial, as_incumbent, without_time
from tuner.tuning.tune import STAYS

PARTS = (AttentionPart.DECODE, AttentionPart.REDUCE)


@dataclass(frozen=True)
class JointBuckets:
    """The points of a number of sequences: a point of each kernel for each length."""

    decode: Bucket
    reduce: Bucket

    @property
    def representative(self) -> Point:
        return self.decode.representative

    @property
    def lengths(self) -> int:
        """Return the number of lengths."""
        return len(self.decode.points)

    def points(self, part: AttentionPart) -> tuple[Point, ...]:
        return (self.decode if part is AttentionPart.DECODE else self.reduce).points


def sizes_of(buckets: Sequence[Bucket]) -> list[JointBuckets]:
    """Pair the buckets of decode's two kernels."""
    by_part = {part: [b for b in buckets if b.part is part] for part in PARTS}
    pairs = zip(by_part[AttentionPart.DECODE], by_part[AttentionPart.REDUCE], strict=True)
    return [JointBuckets(decode, reduce) for decode, reduce in pairs]


@dataclass(frozen=True, order=True)
class JointChoice:
    """The configurations of a number of sequences."""

    cost: float  # the weighted mean of the time divided by the engine's, over the lengths
    room: int
    splits: tuple[int, ...]  # for each length; 0: as the engine's own rule says
    constants: tuple[Config, Config]  # of both kernels
    us: tuple[float, ...]  # of both kernels together, for each length

    def config(self, part: AttentionPart, length: int) -> Config:
        """Return the configuration of a kernel at a length, by the length's position."""
        return with_splits(self.constants[PARTS.index(part)], self.splits[length], self.room)


class Times:
    """The known times of a number of sequences."""

    def __init__(
        self, sizes: JointBuckets, us: Mapping[Candidate, float], own: Mapping[Point, Config]
    ) -> None:
        """Sort the times.

        `us`: microseconds by candidate; `own`: the engine's configuration of each point.
        """
        self._sizes = sizes
        self._own = own
        self._by_candidate = us
        # room -> kernel -> length -> constants -> splits -> microseconds
        self._us: dict[int, list[list[dict[Config, dict[int, float]]]]] = {}
        for at, part in enumerate(PARTS):
            places = {point: i for i, point in enumerate(sizes.points(part))}
            for candidate, time in us.items():
                if candidate.point in places:
                    config, length = candidate.config, places[candidate.point]
                    known = self._length(config[MAX_KV_SPLITS], at, length)
                    known.setdefault(constants_of(config), {})[config[KV_SPLITS]] = time

    def _length(self, room: int, kernel: int, length: int) -> dict[Config, dict[int, float]]:
        if room not in self._us:
            self._us[room] = [[{} for _ in range(self._sizes.lengths)] for _ in PARTS]
        return self._us[room][kernel][length]

    @cached_property
    def engines(self) -> JointChoice | None:
        """Return the engine's own rule and constants; None if a time is missing."""
        return self.choice_of(self._own)

    def choice_of(self, configs: Mapping[Point, Config]) -> JointChoice | None:
        """Return the choice that these configurations make; None if they make no choice, or if a
        time is missing.

        `configs` may have points of other numbers of sequences.
        """
        us = self._together(configs)
        if us is None:
            return None
        decode, reduce = ([configs[p] for p in self._sizes.points(part)] for part in PARTS)
        room, splits = decode[0][MAX_KV_SPLITS], tuple(one[KV_SPLITS] for one in decode)
        constants = constants_of(decode[0]), constants_of(reduce[0])
        choice = JointChoice(self.cost(us), room, splits, constants, us)
        for part, some in zip(PARTS, (decode, reduce), strict=True):
            if any(choice.config(part, at) != config for at, config in enumerate(some)):
                return None
        return choice

    @cached_property
    def _own_us(self) -> tuple[float, ...] | None:
        return self._together(self._own)

    def _together(self, configs: Mapping[Point, Config]) -> tuple[float, ...] | None:
        """Return the microseconds of both kernels for each length; None if a kernel has no time."""
        found = []
        for points in zip(*(self._sizes.points(part) for part in PARTS), strict=True):
            here = (Candidate(point, configs[point]) for point in points if point in configs)
            times = [self._by_candidate[one] for one in here if one in self._by_candidate]
            if len(times) < len(PARTS):
                return None
            found.append(sum(times))
        return tuple(found)

    def choices(self, slack: float = float("inf")) -> list[JointChoice]:
        """Return all choices whose times are known, the fastest first, without choices that are
        slower than the engine's own at any length by more than `slack` (a share).
        """
        found = (
            choice
            for room, kernels in self._us.items()
            for first in _common(kernels[0])
            for second in _common(kernels[1])
            if (choice := self._choice(room, (first, second)))
        )
        return sorted(choice for choice in found if self.no_slower(choice, slack))

    def no_slower(self, choice: JointChoice, slack: float) -> bool:
        """Say whether a choice is at no length slower than the engine's own by more than
        `slack`.
        """
        own = self._own_us
        return own is None or all(
            us <= most * (1 + slack) for us, most in zip(choice.us, own, strict=True)
        )

    def _choice(self, room: int, constants: tuple[Config, Config]) -> JointChoice | None:
        """Return the choice with the fastest number of splits at each length; None if a length has
        no time.
        """
        best = []
        for decode, reduce in zip(*self._us[room], strict=True):
            first, second = decode[constants[0]], reduce[constants[1]]
            sums = [(first[n] + second[n], n) for n in first.keys() & second.keys() if n]
            if not sums:
                return None
            best.append(min(sums))
        us = tuple(time for time, _ in best)
        splits = tuple(n for _, n in best)
        return JointChoice(self.cost(us), room, splits, constants, us)

    def cost(self, us: Sequence[float]) -> float:
        """Return the weighted mean of the times in units of the engine's own, or in
        microseconds.
        """
        return self._sizes.decode.cost(us, self._own_us or [None] * len(us))


def _common(lengths: Sequence[Mapping[Config, object]]) -> Iterator[Config]:
    """Return the constants that have times at every length."""
    first, *others = lengths
    return (config for config in first if all(config in other for other in others))


# Choices for each number of sequences, besides the engine's own, the stored and the chosen.
FINALISTS = 5


@dataclass(frozen=True)
class JointChooser:
    """`choose` and `finalists` for a run."""

    sizes: Sequence[JointBuckets]
    own: Mapping[Point, Config]  # the engine's constants and rule
    noise: float  # relative; a smaller gain does not count
    previous: Mapping[Point, Config] | None = None  # the stored choices when the run began

    def choose(self, trials: Sequence[Trial]) -> list[Entry]:
        """Return an entry for each point. Raises NothingFits if nothing runs at all lengths."""
        by_candidate = {trial.candidate: trial for trial in trials}
        us = _times(trials)
        return [
            entry
            for sizes in self.sizes
            for entry in self._entries(sizes, Times(sizes, us, self.own), by_candidate)
        ]

    def finalists(self, trials: Sequence[Trial], entries: Sequence[Entry]) -> list[Trial]:
        """Return the trials of the best, the chosen, the stored and the engine's own choices."""
        by_candidate = {trial.candidate: trial for trial in trials}
        chosen = {entry.point: entry.config for entry in entries}
        us = _times(trials)
        found: dict[Candidate, Trial] = {}
        for sizes in self.sizes:
            times = Times(sizes, us, self.own)
            named = (
                times.choice_of(configs) for configs in (chosen, self.previous or {}, self.own)
            )
            for choice in [*times.choices()[:FINALISTS], *filter(None, named)]:
                for part in PARTS:
                    for at, point in enumerate(sizes.points(part)):
                        candidate = Candidate(point, choice.config(part, at))
                        found[candidate] = by_candidate[candidate]
        return list(found.values())

    def _entries(
        self, sizes: JointBuckets, times: Times, trials: Mapping[Candidate, Trial]
    ) -> Iterator[Entry]:
        own = times.engines
        choices = times.choices(self.noise)
        if not choices and own is None:
            raise NothingFits(f"no configuration compiles and fits for {sizes.representative}")
        keep = own is not None and (not choices or choices[0].cost >= 1 - self.noise)
        stored = self._stored(times, choices)
        choice = stored or (own if keep and own is not None else choices[0])
        defaults = {
            point: as_incumbent(self.own[point], trials.get(Candidate(point, self.own[point])))
            for part in PARTS
            for point in sizes.points(part)
        }
        for part in PARTS:
            for at, point in enumerate(sizes.points(part)):
                trial = trials[Candidate(point, choice.config(part, at))]
                why = _reason(choice, own, at, trial, defaults.values())
                yield Entry(
                    point=point,
                    config=trial.candidate.config,
                    status=trial.measurement.status,
                    median_us=trial.measurement.median_us,
                    compiled=trial.compiled,
                    incumbents={"default": defaults[point]},
                    reason=why + (f"; {STAYS}" if stored else ""),
                )

    def _stored(self, times: Times, choices: Sequence[JointChoice]) -> JointChoice | None:
        """Return the stored choice, unless another is faster by more than the noise or the engine's
        own is faster at all.
        """
        stored, own = times.choice_of(self.previous or {}), times.engines
        if stored is None or stored == own or not times.no_slower(stored, self.noise):
            return None
        if own is not None and stored.cost > own.cost:
            return None
        beaten = choices and choices[0].cost < stored.cost * (1 - self.noise)
        return None if beaten else stored


def _times(trials: Sequence[Trial]) -> dict[Candidate, float]:
    times = ((trial.candidate, trial.measurement.median_us) for trial in trials)
    return {candidate: us for candidate, us in times if us is not None}


def _reason(
    choice: JointChoice,
    own: JointChoice | None,
    length: int,
    trial: Trial,
    defaults: Iterable[Incumbent],
) -> str:
    if choice is own:
        why = "the engine's own splits and constants are as fast, within the noise"
    elif own is None:
        why = without_time("the engine's own constants", defaults)
    else:
        gain = f"{own.us[length] / choice.us[length]:.3f}x"
        why = f"{gain} as fast as the engine, both kernels"
    return why + _reduction_share(choice, length, trial)


def _reduction_share(choice: JointChoice, length: int, trial: Trial) -> str:
    """Return a remark if the reduction takes more time than the first kernel; else ""."""
    us = trial.measurement.median_us
    if (
        trial.candidate.point.part is not AttentionPart.REDUCE
        or us is None
        or us * 2 <= choice.us[length]
    ):
        return ""
    return f"; the reduction takes {us / choice.us[length]:.0%} of the time"

"""What tuning a family of kernels can still gain, at the sizes that a profile has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from tuner.problems.points import Point
from tuner.problems.records import Winner
from tuner.problems.results import Status
from tuner.profile.families import KernelFamily
from tuner.profile.profile import Phase, Profile, Step


class Basis(str, Enum):
    """Where a gain is from, the most certain first."""

    IN_USE = "in use"  # the server has the tuned files, so their gain is in the trace already
    MEASURED = "measured"  # for this problem, on this GPU
    PREDICTED = "predicted"  # for this problem, by a model of the GPU
    ELSEWHERE = "elsewhere"  # measured on other problems


@dataclass(frozen=True)
class Headroom:
    """How many times as fast a family's kernels can become."""

    gain: float
    basis: Basis


def headroom(
    family: KernelFamily,
    profile: Profile,
    phase: Phase,
    winners: Sequence[Winner],
    in_use: Iterable[str] = (),
) -> Headroom | None:
    """What tuning can still gain for a family in a phase; None for one that is not tuned.

    `winners` are stored for the problems of the served model on its GPU. `in_use` names the kinds
    of problems whose tuned files the server has. A phase's steps say which sizes count.
    """
    if not family.tuned_as:
        return None
    if set(family.tuned_as) & set(in_use):
        return Headroom(1.0, Basis.IN_USE)
    ours = [winner for winner in winners if winner.problem.family in family.tuned_as]
    steps = [step for step in profile.steps if step.phase is phase]
    for status, basis in ((Status.OK, Basis.MEASURED), (Status.PREDICTED, Basis.PREDICTED)):
        gain = _gain([w for w in ours if w.status is status], steps)
        if gain is not None:
            return Headroom(gain, basis)
    return Headroom(family.gained_elsewhere, Basis.ELSEWHERE)


def _gain(winners: Sequence[Winner], steps: Sequence[Step]) -> float | None:
    """How many times as fast the tuned kernels are as the engine's choice; None without times.

    Each problem counts alike: the profile does not tell their layers apart.
    """
    gains = []
    for problem in {winner.problem: None for winner in winners}:
        timed = _timed(winner for winner in winners if winner.problem == problem)
        if timed:
            gains.append(_at_steps(timed, steps))
    return math.exp(sum(map(math.log, gains)) / len(gains)) if gains else None


def _timed(winners: Iterable[Winner]) -> dict[Point, tuple[float, float]]:
    """(microseconds of what the engine would run, of the winner) by point."""
    found: dict[Point, tuple[float, float]] = {}
    for winner in winners:
        entry = winner.entry
        engines = entry.incumbents.get("shipped") or entry.incumbents.get("default")
        if entry.median_us and engines and engines.median_us:
            found[entry.point] = engines.median_us, min(entry.median_us, engines.median_us)
    return found


def _at_steps(timed: Mapping[Point, tuple[float, float]], steps: Sequence[Step]) -> float:
    """The gain at the steps' sizes, each weighted by its time; without steps, at all sizes."""
    if not steps:
        return _ratio(timed.values())
    left = total = 0.0
    for step in steps:
        near = _nearest(timed, step)
        left += step.time_us / _ratio(timed[point] for point in near)
        total += step.time_us
    return total / left if left else 1.0


def _nearest(timed: Mapping[Point, tuple[float, float]], step: Step) -> list[Point]:
    """The points at the size that is nearest to a step's, as engines look entries up."""

    def distance(point: Point) -> float:
        if not point.new_tokens:  # a size is a number of tokens
            return abs(point.batch_size - max(step.new_tokens, step.sequences))
        new = max(1, step.new_tokens // max(1, step.sequences))
        return abs(math.log(point.batch_size / max(1, step.sequences))) + abs(
            math.log(max(1, point.new_tokens) / new)
        )

    least = min(map(distance, timed))
    return [point for point in timed if distance(point) == least]


def _ratio(times: Iterable[tuple[float, float]]) -> float:
    pairs = list(times)
    return sum(before for before, _ in pairs) / sum(after for _, after in pairs)

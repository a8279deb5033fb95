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
from tuner.profile.lookup import Lengths, Times, gain_at, ratio, unknown_lengths
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
    lengths: Lengths = unknown_lengths,
) -> Headroom | None:
    """What tuning can still gain for a family in a phase; None for one that is not tuned.

    `winners` are stored for the problems of the served model on its GPU. `in_use` names the kinds
    of problems whose tuned files the server has. A phase's steps say which sizes count, and
    `lengths` how much was cached at them.
    """
    if not family.tuned_as:
        return None
    if set(family.tuned_as) & set(in_use):
        return Headroom(1.0, Basis.IN_USE)
    ours = [winner for winner in winners if winner.problem.family in family.tuned_as]
    steps = [step for step in profile.steps if step.phase is phase]
    for status, basis in ((Status.OK, Basis.MEASURED), (Status.PREDICTED, Basis.PREDICTED)):
        gain = _gain([w for w in ours if w.status is status], steps, lengths)
        if gain is not None:
            return Headroom(gain, basis)
    return Headroom(family.gained_elsewhere, Basis.ELSEWHERE)


def _gain(winners: Sequence[Winner], steps: Sequence[Step], lengths: Lengths) -> float | None:
    """How many times as fast the tuned kernels are as the engine's choice; None without times.

    Each problem counts alike: the profile does not tell their layers apart.
    """
    gains = []
    for problem in {winner.problem: None for winner in winners}:
        timed = _timed(winner for winner in winners if winner.problem == problem)
        if timed:
            # Parts are chosen together, so one of them may be slower, but not all of them.
            gains.append(max(1.0, _at_steps(timed, steps, lengths)))
    return math.exp(sum(map(math.log, gains)) / len(gains)) if gains else None


def _timed(winners: Iterable[Winner]) -> dict[Point, Times]:
    found: dict[Point, Times] = {}
    for winner in winners:
        entry = winner.entry
        engines = entry.incumbents.get("shipped") or entry.incumbents.get("default")
        if entry.median_us and engines and engines.median_us:
            found[entry.point] = engines.median_us, entry.median_us
    return found


def _at_steps(timed: Mapping[Point, Times], steps: Sequence[Step], lengths: Lengths) -> float:
    """The gain at the steps' sizes, each weighted by its time; without steps, at all sizes."""
    if not steps:
        return ratio(timed.values())
    left = total = 0.0
    for step in steps:
        left += step.time_us / gain_at(timed, step, lengths(step))
        total += step.time_us
    return total / left if left else 1.0

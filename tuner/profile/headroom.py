"""What tuning a family of kernels can still gain, at the sizes that a profile has."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import geometric_mean

from tuner.problems.points import Part, Point, Problem
from tuner.problems.results import Status, Winner
from tuner.profile.families import KernelFamily
from tuner.profile.profile import Phase, Profile, Step

Times = tuple[float, float]  # microseconds: of what the engine would run, and of the winner
_ALIKE = 1.5  # times as long: a step's other calls and another run of the GPU may differ so much


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
    steps = [step for step in profile.steps if step.phase is phase and family.name in step.families]
    for status, basis in ((Status.OK, Basis.MEASURED), (Status.PREDICTED, Basis.PREDICTED)):
        timed = _by_problem(w for w in ours if w.status is status)
        if timed:
            return Headroom(_gain(timed, family, steps), basis)
    return Headroom(family.gained_elsewhere, Basis.ELSEWHERE)


def _gain(
    timed: Sequence[Mapping[Point, Times]], family: KernelFamily, steps: Sequence[Step]
) -> float:
    """How many times as fast the tuned kernels are as the engine's choice.

    Each step counts with the time of its kernels; without steps, all sizes of all problems count
    alike.
    """
    if not steps:
        return geometric_mean(max(1.0, ratio(times.values())) for times in timed)
    left = total = 0.0
    for step in steps:
        took = step.families[family.name]
        at = [times_at(times, step) for times in timed]
        # Parts are chosen together, so one of them may be slower, but not all of them.
        left += took.time_us / max(1.0, ratio(_that_ran(at, took.time_us / took.calls)))
        total += took.time_us
    return total / left if left else 1.0


def _that_ran(problems: Sequence[Sequence[Times]], call_us: float) -> Sequence[Times]:
    """The times of the problems whose kernels a step ran, where a call took so long.

    A model's dense GEMMs run one after the other, so all of them ran. Latent attention has two
    prefill kernels: a step runs one of them, and the trace does not record which. So the mean of
    all counts unless one problem alone explains the time and the mean does not.
    """
    together = [*itertools.chain(*problems)]
    if _off(together, call_us) <= math.log(_ALIKE):
        return together
    return min([together, *problems], key=lambda times: _off(times, call_us))


def _off(times: Sequence[Times], call_us: float) -> float:
    """How far a call's time lies from the engine's own, as a logarithm."""
    engines_us = sum(before for before, _ in times) / len(times)
    return abs(math.log(call_us / engines_us)) if call_us and engines_us else math.inf


def _by_problem(winners: Iterable[Winner]) -> list[dict[Point, Times]]:
    """The times of the engine's choice and of the winner, where there are both."""
    found: dict[Problem, dict[Point, Times]] = {}
    for winner in winners:
        entry = winner.entry
        engines = entry.incumbents.get("shipped") or entry.incumbents.get("default")
        if entry.median_us and engines and engines.median_us:
            times = engines.median_us, entry.median_us
            found.setdefault(winner.problem, {})[entry.point] = times
    return list(found.values())


def times_at(timed: Mapping[Point, Times], step: Step) -> list[Times]:
    """Return the times of each of a problem's kernels at a step, by the nearest tuned size.

    Sequences and new tokens choose the size, as in engines. A trace does not record how much was
    cached, so all tuned lengths count alike.
    """
    sizes = sorted({(point.batch_size, point.new_tokens) for point in timed})
    nearest = min(sizes, key=lambda size: _distance(size, step))
    by_part: dict[Part, list[Times]] = {}
    for point, times in timed.items():
        if (point.batch_size, point.new_tokens) == nearest:
            by_part.setdefault(point.part, []).append(times)
    return [_mean(times) for times in by_part.values()]


def _mean(times: Sequence[Times]) -> Times:
    before, after = (sum(column) / len(times) for column in zip(*times, strict=True))
    return before, after


def ratio(times: Iterable[Times]) -> float:
    """Return how many times as fast the winners are, all together."""
    pairs = list(times)
    return sum(before for before, _ in pairs) / sum(after for _, after in pairs)


def _distance(size: tuple[int, int], step: Step) -> float:
    """Return how far a tuned size lies from a step; sequences and new tokens count in octaves."""
    batch_size, new_tokens = size
    if not new_tokens:  # a size is a number of tokens
        return abs(batch_size - max(step.new_tokens, step.sequences))
    new = step.new_tokens // max(1, step.sequences)
    return _octaves(batch_size, step.sequences) + _octaves(new_tokens, new)


def _octaves(one: int, other: int) -> float:
    return abs(math.log2(max(1, one) / max(1, other)))

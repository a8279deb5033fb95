"""The gain of a problem's tuned kernels at the sizes of a server's steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from tuner.problems.points import Part, Point
from tuner.profile.profile import Step

Times = tuple[float, float]  # microseconds: of what the engine would run, and of the winner
# The cached tokens per sequence at which a step's kernels ran; empty where nobody knows.
Lengths = Callable[[Step], Sequence[int]]


def unknown_lengths(_: Step) -> Sequence[int]:
    """Traces do not say how much is cached."""
    return ()


def times_at(timed: Mapping[Point, Times], step: Step, cached: Sequence[int]) -> list[Times]:
    """The times of each of a problem's kernels at a step, by the nearest tuned size.

    Sequences and new tokens choose the size, as in engines; how much a size gains depends on the
    cached tokens. Between two lengths that were tuned, times are interpolated; beyond the longest
    one they stay as there. Where `cached` is empty, all tuned lengths count.
    """
    sizes = sorted({(point.batch_size, point.new_tokens) for point in timed})
    nearest = min(sizes, key=lambda size: _distance(size, step))
    by_part: dict[Part, dict[int, Times]] = {}
    for point, times in timed.items():
        if (point.batch_size, point.new_tokens) == nearest:
            by_part.setdefault(point.part, {})[point.cached_tokens] = times
    return [
        _mean([_interpolated(by_length, length) for length in cached] or [*by_length.values()])
        for by_length in by_part.values()
    ]


def _mean(times: Sequence[Times]) -> Times:
    before, after = (sum(column) / len(times) for column in zip(*times, strict=True))
    return before, after


def ratio(times: Iterable[Times]) -> float:
    """How many times as fast the winners are, all together."""
    pairs = list(times)
    return sum(before for before, _ in pairs) / sum(after for _, after in pairs)


def _distance(size: tuple[int, int], step: Step) -> float:
    batch_size, new_tokens = size
    if not new_tokens:  # a size is a number of tokens
        return abs(batch_size - max(step.new_tokens, step.sequences))
    new = step.new_tokens // max(1, step.sequences)
    return apart(batch_size, step.sequences) + apart(new_tokens, new)


def apart(one: int, other: int) -> float:
    """How far two numbers lie apart by their ratio, in octaves; 0 counts as 1."""
    return abs(math.log2(max(1, one) / max(1, other)))


def _interpolated(by_length: Mapping[int, Times], cached: int) -> Times:
    """Linear, because an attention kernel's time grows with the tokens that it reads."""
    below = max((n for n in by_length if n <= cached), default=min(by_length))
    above = min((n for n in by_length if n >= cached), default=max(by_length))
    if below == above:
        return by_length[below]
    part = (cached - below) / (above - below)
    (before, after), (before_above, after_above) = by_length[below], by_length[above]
    return before + part * (before_above - before), after + part * (after_above - after)

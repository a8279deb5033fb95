"""Read the batches that a server really runs from its log or from a benchmark.

Weights add up to 1 in each phase: prefill and decode are tuned apart, so their shares of each
other's time do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import accumulate

# sglang: `log_decode_stats` and `log_prefill_stats` (0.4.4 to 0.5.23).
_DECODE = re.compile(
    r"Decode batch\b.*?#running-req: (?P<n>\d{1,7}),(?:.*?#(?:full )?token: (?P<tokens>\d{1,12}),)?"
    r"(?:.*?gen throughput \(token/s\): (?P<speed>[0-9.]{1,20}))?"  # people leave ends out
)
_PREFILL = re.compile(
    r"Prefill batch\b.*?#new-seq: (?P<n>\d{1,7}), #new-token: (?P<new>\d{1,9}), "
    r"#cached-token: (?P<cached>\d{1,12})"
)
# vLLM: `LoggingStatLogger` every 10 s, and the size of the cache when the server starts.
_VLLM = re.compile(
    r"Avg generation throughput: [0-9.]{1,20} tokens/s,?\s*(?:Max iteration.{0,80}?)?"
    r"Running: (?P<n>\d{1,7}) reqs.*?"
    r"KV cache usage: (?P<usage>[0-9.]{1,10})%"
)
_VLLM_CACHE = re.compile(r"KV cache size: (?P<tokens>[\d,]{1,20}) tokens")

MOST_POINTS = 12  # of a phase; each configuration is measured at every point
_LEAST = 0.01  # of a phase's time; rarer batches are left out


class Phase(str, Enum):
    """The two kinds of steps of a server."""

    PREFILL = "prefill"  # new tokens of prompts
    DECODE = "decode"  # one new token a sequence


@dataclass(frozen=True)
class WeightedBatch:
    """A batch, and the part of its phase's time that such batches take."""

    phase: Phase
    sequences: int
    new_tokens: int  # of the longest sequence; 1 for decode
    cached_tokens: int | None  # average per sequence; None: not known
    weight: float

    @property
    def tokens(self) -> int:
        """Return the tokens in a step, which layers without attention see."""
        return self.sequences * self.new_tokens


def batches_of_log(lines: Iterable[str]) -> list[WeightedBatch]:
    """Return the batches in a log of sglang or vLLM; none if the lines name none."""
    found: list[WeightedBatch] = []
    cache_tokens = 0
    fastest: dict[int, float] = {}  # the most tokens/s of sglang's decode, by running requests
    for line in lines:
        if match := _DECODE.search(line):
            n, speed = int(match["n"]), _number(match["speed"] or "0")
            if n and speed:
                fastest[n] = max(speed, fastest.get(n, 0.0))
                cached = int(match["tokens"]) // n if match["tokens"] else None
                found.append(WeightedBatch(Phase.DECODE, n, 1, cached, 0.0))
        elif match := _PREFILL.search(line):
            n, new = int(match["n"]), int(match["new"])
            if n and new:
                cached = int(match["cached"]) // n
                found.append(WeightedBatch(Phase.PREFILL, n, max(2, new // n), cached, new))
        elif match := _VLLM_CACHE.search(line):
            cache_tokens = int(match["tokens"].replace(",", "") or 0)
        elif (match := _VLLM.search(line)) and int(match["n"]):
            n = int(match["n"])
            held = round(cache_tokens * _number(match["usage"]) / 100 / n)
            found.append(WeightedBatch(Phase.DECODE, n, 1, held or None, 1.0))
    # A line of sglang's decode stands for a fixed number of steps.
    step_s = _step_times(fastest)
    return merged(b if b.weight else replace(b, weight=step_s[b.sequences]) for b in found)


def _step_times(fastest: Mapping[int, float]) -> dict[int, float]:
    """Return the seconds of a step by running requests, from the most tokens/s at each.

    A line's own speed does not tell them: it is over the time since the line before, in which the
    server may have been idle. A step with fewer requests takes no longer, and a step with more
    requests makes no fewer tokens/s.
    """
    counts = sorted(fastest)
    speeds = accumulate((fastest[n] for n in counts), max)
    longest = [*accumulate((n / fastest[n] for n in reversed(counts)), min)]
    return {
        n: min(n / speed, limit_s)
        for n, speed, limit_s in zip(counts, speeds, reversed(longest), strict=True)
    }


def batches_of_load(concurrency: int, input_tokens: int, output_tokens: int) -> list[WeightedBatch]:
    """Return the batches of a benchmark with so many requests in flight, of mean lengths.

    A sequence's cache holds its prompt and on average half of its answer.
    """
    held = input_tokens + output_tokens // 2
    return [
        WeightedBatch(Phase.DECODE, concurrency, 1, held or None, 1.0),
        *([WeightedBatch(Phase.PREFILL, 1, input_tokens, 0, 1.0)] if input_tokens > 1 else []),
    ]


def sizes(batches: Sequence[WeightedBatch], ladder: Sequence[int]) -> list[int]:
    """Return the sizes of a ladder that engines would pick for the batches, without rare sizes."""
    weights: dict[int, dict[Phase, float]] = {}
    for batch in batches:
        nearest = min(ladder, key=lambda size: (abs(size - batch.tokens), size))
        of_phase = weights.setdefault(nearest, {})
        of_phase[batch.phase] = of_phase.get(batch.phase, 0.0) + batch.weight
    return sorted(size for size, found in weights.items() if max(found.values()) >= _LEAST)


def points(batches: Sequence[WeightedBatch]) -> list[WeightedBatch]:
    """Return at most `MOST_POINTS` batches of each phase with known lengths, by powers of two.

    Weights are rounded, so that the same traffic gives the same points.
    """
    weights: dict[tuple[Phase, int, int, int], float] = {}
    for batch in batches:
        if batch.cached_tokens is not None:
            least = 1 if batch.phase is Phase.DECODE else 0
            new = 1 if batch.phase is Phase.DECODE else max(2, _power(batch.new_tokens))
            cached = max(least, _power(batch.cached_tokens))
            key = batch.phase, _power(batch.sequences), new, cached
            weights[key] = weights.get(key, 0.0) + batch.weight
    found: list[WeightedBatch] = []
    for phase in (Phase.PREFILL, Phase.DECODE):
        here = [WeightedBatch(*key, weight) for key, weight in weights.items() if key[0] is phase]
        here.sort(key=lambda b: (-b.weight, b.sequences, b.new_tokens, b.cached_tokens or 0))
        found += [
            replace(batch, weight=round(batch.weight, 3))
            for batch in here[:MOST_POINTS]
            if batch.weight >= _LEAST
        ]
    return found


def merged(batches: Iterable[WeightedBatch]) -> list[WeightedBatch]:
    """Scale the weights so that they add up to 1 in each phase; each source counts alike."""
    known = list(batches)
    totals: dict[Phase, float] = {}
    for batch in known:
        totals[batch.phase] = totals.get(batch.phase, 0.0) + batch.weight
    return [replace(batch, weight=batch.weight / totals[batch.phase]) for batch in known]


def _power(value: int) -> int:
    """Return the nearest power of two, 0 for 0; of two equally near the smaller."""
    if value < 1:
        return 0
    below = 1 << (value.bit_length() - 1)
    return below if value - below <= 2 * below - value else 2 * below


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # "1.2.3"
        return 0.0

"""The tokens of each sequence of a batch, and how the engine splits their cache. No torch."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.families.attention.problem import Attention, AttentionPhase
from tuner.problems.points import Point

SPLIT_BLOCK_H = 16  # query heads per block of stage 1, according to the engine's split heuristic


@dataclass(frozen=True)
class Lengths:
    """Tokens of each sequence of a batch."""

    new: tuple[int, ...]
    cached: tuple[int, ...]  # at decode, this includes the new token

    @property
    def longest_new(self) -> int:
        return max(self.new)


# Sequences that end inside, at and after a block, without new tokens, and without a cache.
EDGES = {
    AttentionPhase.EXTEND: Lengths(new=(33, 0, 1, 64, 7, 129), cached=(0, 50, 129, 1, 64, 0)),
    AttentionPhase.PREFILL: Lengths(new=(33, 1, 64, 129), cached=(0, 0, 0, 0)),
    AttentionPhase.DECODE: Lengths(new=(1,) * 6, cached=(1, 33, 0, 257, 64, 128)),
}


def ragged(problem: Attention, point: Point, seed: int) -> Lengths:
    """Random lengths near a point's: from half to all of the new tokens, and cached tokens within
    a quarter of their mean. The first sequence has exactly the point's lengths. With a window, the
    engine passes only the cached tokens that the first new token sees.
    """
    rng = random.Random(seed)  # noqa: S311 (no secret)
    others = range(point.batch_size - 1)
    if problem.phase is AttentionPhase.DECODE:
        new = [1] * point.batch_size
    else:
        least = -(-point.new_tokens // 2)
        new = [point.new_tokens, *(rng.randint(least, point.new_tokens) for _ in others)]
    spread = point.cached_tokens // 4
    cached = [point.cached_tokens + rng.randint(-spread, spread) for _ in others]
    most = problem.window or max(cached, default=0) + point.cached_tokens
    return Lengths(tuple(new), tuple(min(n, most) for n in (point.cached_tokens, *cached)))


def kv_splits(cached: Sequence[int], problem: Attention, cores: int) -> list[int]:
    """The number of parts into which the engine splits each sequence's cache.

    `cached`: tokens per sequence; `cores`: the device's multiprocessors. Source:
    `get_num_kv_splits_triton` in sglang 0.5.2 to 0.5.23. Its backend passes the model's own number
    of key heads, which for latent attention is the number of query heads.
    """
    longest, shortest = max(cached), max(1, min(cached))
    if longest * 8 < shortest * 10:
        shortest = longest
    at_most = problem.most_splits
    by_length = _ceil(longest, min(_ceil(longest, shortest), at_most))
    grown = int(cores * max(math.log2(longest / 64), 1.0)) if longest else cores
    heads = problem.q_heads
    if problem.group > 1 and not problem.shares_kv:
        heads = _ceil(heads, min(SPLIT_BLOCK_H, problem.group))
    by_cores = _ceil(longest, min(_ceil(grown, len(cached) * heads), at_most))
    return [max(1, _ceil(n, max(1, by_length)), _ceil(n, max(1, by_cores))) for n in cached]


def _ceil(a: int, b: int) -> int:
    return -(-a // b)

"""Compute the number of parts that decode splits each sequence's cache into. No torch.

A configuration of decode has two numbers besides its constants. All sequences of a point have
KV_SPLITS parts. The launch has room for MAX_KV_SPLITS parts of each sequence: blocks of the first
kernel, and turns of the second kernel's loop. Inside a CUDA graph the room is fixed for a number of
sequences, and only the parts follow the lengths.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tuner.families.attention.problem import Attention, AttentionPhase
from tuner.problems.points import Config, Point

SPLIT_BLOCK_H = 16  # query heads per block of the first kernel, by the engine's split heuristic


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
    """Return random lengths near a point's: from half to all of the new tokens, and cached tokens
    within a quarter of their mean. The first sequence has exactly the point's lengths. With a
    window, the engine passes only the cached tokens that the first new token sees.
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
    """Return the number of parts into which the engine splits each sequence's cache.

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


KV_SPLITS = "KV_SPLITS"  # 0: as many as the engine's own rule says
MAX_KV_SPLITS = "MAX_KV_SPLITS"
BOTH = (KV_SPLITS, MAX_KV_SPLITS)

MOST = 128  # parts of a sequence that are tried
# A sequence that is much longer than the others in its batch needs more parts than they do. So a
# launch has room for as many parts as the engine's own, or for this many if that is fewer.
ROOM_FOR_LONG = 32
# The memory for the parts' results of one launch, if the engine's own launch needs less.
ROOM_BYTES = 64 << 20
PART_TOKENS = 32  # a part's length is a multiple of this
BLOCKS_PER_SM = 8  # more parts than this gives blocks were never faster


def with_splits(constants: Config, splits: int, room: int) -> Config:
    """Return the configuration with these constants and numbers."""
    return constants.replace(**{KV_SPLITS: splits, MAX_KV_SPLITS: room})


def constants_of(config: Config) -> Config:
    """Return the configuration without its numbers of parts."""
    return Config({name: value for name, value in config.items() if name not in BOTH})


def launched(problem: Attention, config: Config) -> tuple[Attention, Config]:
    """Return the problem with the room of a configuration's launch, and the kernels' constants.

    The inputs of several launches share a buffer with room for the largest, so the configuration's
    room replaces the problem's.
    """
    if MAX_KV_SPLITS not in config:
        return problem, config
    return problem.with_room(config[MAX_KV_SPLITS]), constants_of(config)


def parts_of(problem: Attention, config: Config, lengths: Lengths, cores: int) -> list[int]:
    """Return the number of parts of each sequence. `cores`: the device's multiprocessors."""
    if config.get(KV_SPLITS):
        return [config[KV_SPLITS]] * len(lengths.cached)
    return kv_splits(lengths.cached, launched(problem, config)[0], cores)


def room_limit(problem: Attention, sequences: int, engines: int) -> int:
    """Return the most parts that a launch may have room for. `engines`: the engine's own number."""
    part_bytes = sequences * problem.q_heads * problem.Lv * 4
    return max(engines, ROOM_BYTES // part_bytes)


def worthwhile(
    problem: Attention, points: Sequence[Point], engines: int, cores: int
) -> dict[Point, list[tuple[int, int]]]:
    """Return pairs (parts, room) to try at each of the points, which have the same number of
    sequences.

    `engines`: the most parts that the engine's own rule makes; `cores`: multiprocessors.
    """
    sequences = points[0].batch_size
    most = {point: _most_parts(problem, point, cores) for point in points}
    limit = room_limit(problem, sequences, engines)
    least = min(engines, ROOM_FOR_LONG)
    rooms = [room for room in _doubled(least, max(least, *most.values())) if room <= limit]
    return {
        point: [(n, room) for room in rooms for n in _doubled(1, most[point]) if n <= room]
        for point in points
    }


def _most_parts(problem: Attention, point: Point, cores: int) -> int:
    heads = problem.q_heads
    if problem.group > 1:
        heads = -(-heads // min(SPLIT_BLOCK_H, problem.group))
    by_blocks = max(1, BLOCKS_PER_SM * cores // (point.batch_size * heads))
    return min(MOST, by_blocks, max(1, -(-point.cached_tokens // PART_TOKENS)))


def _doubled(least: int, most: int) -> Iterable[int]:
    """Yield `least` and its doubles, until a double reaches `most`, but at most MOST."""
    number = least
    yield number
    while number < most and 2 * number <= MOST:
        number *= 2
        yield number

"""The blocks of an attention launch, and the tiles of keys that each block processes.

This follows sglang's `_fwd_kernel`, `_fwd_grouped_kernel_stage1` and `_fwd_kernel_stage1`, with
the same ragged lengths as measurements on a GPU.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner.families.attention.lengths import Lengths
from tuner.families.attention.problem import Attention, Stage
from tuner.families.attention.splits import parts_of
from tuner.problems.points import Config, Point

MIN_SPLIT = 32  # tokens; a split's length is a multiple of it (`_MIN_BLOCK_KV`)
SIMULATED_WAVES = 4  # with more waves, the order of the blocks hardly matters


@dataclass(frozen=True)
class Tiles:
    """The numbers of one block's tiles. A tile has BLOCK_N keys."""

    cached: int  # tiles of the cache
    new: int = 0  # tiles of the new tokens
    skipped: int = 0  # tiles outside the window


@dataclass(frozen=True)
class BlockRow:
    """Blocks that are launched in order: one per sequence, repeated for each head."""

    tiles: tuple[Tiles, ...]
    heads: int


def launched(
    problem: Attention, point: Point, config: Config, lengths: Lengths, sm_count: int
) -> list[BlockRow]:
    """All blocks with work, in the order of launch."""
    if point.part is Stage.DECODE:
        rows = _decode(problem, config, lengths, sm_count)
    else:
        rows = _extend(problem, point, config, lengths)
    return [row for row in rows if row.tiles]


def count(rows: Sequence[BlockRow]) -> int:
    """The number of blocks."""
    return sum(row.heads * len(row.tiles) for row in rows)


def makespan(rows: Sequence[BlockRow], slots: int, of: Callable[[Tiles], float]) -> float:
    """The time until the last block is done if `slots` blocks run at once. `of`: a block's time."""
    times = {tiles: of(tiles) for row in rows for tiles in row.tiles}
    longest, number = max(times.values()), count(rows)
    if number <= slots:
        return longest
    if number > SIMULATED_WAVES * slots:
        total = sum(row.heads * times[tiles] for row in rows for tiles in row.tiles)
        return max(longest, total / slots + total / number / 2)
    order = [times[tiles] for row in rows for _ in range(row.heads) for tiles in row.tiles]
    free = order[:slots]
    heapq.heapify(free)
    for time in order[slots:]:
        heapq.heapreplace(free, free[0] + time)
    return max(free)


def _extend(problem: Attention, point: Point, config: Config, lengths: Lengths) -> list[BlockRow]:
    rows, keys = config["BLOCK_M"], config["BLOCK_N"]
    found = []
    for first in range(0, lengths.longest_new, rows):
        tiles = []
        for new, cached in zip(lengths.new, lengths.cached, strict=True):
            if first < new:
                # In prefill all tokens see each other; in extend they see only earlier ones.
                end = new if point.part is Stage.PREFILL else min(new, first + rows)
                tiles.append(_windowed(problem.window, first, cached, end, keys))
        found.append(BlockRow(tuple(tiles), problem.q_heads))
    return found


def _windowed(window: int, first: int, cached: int, end: int, keys: int) -> Tiles:
    """The tiles of a block whose first row is new token `first` and whose last key is `end`."""
    before, new = -(-cached // keys), -(-end // keys)
    if not window:
        return Tiles(before, new)
    unseen = max(0, cached + first - window)  # keys outside the window of all rows
    skipped = before if unseen >= cached else unseen // keys
    skipped_new = min(new, max(0, unseen - cached) // keys)
    return Tiles(before - skipped, new - skipped_new, skipped + skipped_new)


def _decode(problem: Attention, config: Config, lengths: Lengths, sm_count: int) -> list[BlockRow]:
    keys, heads = config["BLOCK_N"], problem.q_heads
    if problem.group > 1:
        heads = -(-heads // min(config["BLOCK_H"], problem.group))
    each = split_lengths(problem, config, lengths, sm_count)
    most = max(-(-n // length) for n, length in zip(lengths.cached, each, strict=True))
    return [
        BlockRow(
            tuple(
                Tiles(-(-min(length, cached - split * length) // keys))
                for cached, length in zip(lengths.cached, each, strict=True)
                if cached > split * length
            ),
            heads,
        )
        for split in range(most)
    ]


def split_lengths(problem: Attention, config: Config, lengths: Lengths, sm_count: int) -> list[int]:
    """Cached tokens per split, for each sequence. A sequence's last split may have fewer."""
    splits = parts_of(problem, config, lengths, sm_count)
    return [
        max(1, -(-cached // (parts * MIN_SPLIT))) * MIN_SPLIT
        for cached, parts in zip(lengths.cached, splits, strict=True)
    ]

"""The blocks of an attention launch, their tiles of keys, and the cost of a tile for an SM.

The choice of instructions, the division of a tile among warps, and prefetching follow Triton 3.6
(AccelerateMatmul.cpp, Pipeliner/AssignLatencies.cpp), checked against the IR of sglang's kernels.
The blocks follow sglang's `_fwd_kernel`, `_fwd_grouped_kernel_stage1` and `_fwd_kernel_stage1`,
with the same ragged lengths as measurements on a GPU.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner.devices.constants import Constants
from tuner.devices.table import Device
from tuner.devices.tile_model import Footprint
from tuner.families.attention.problem import Attention, AttentionPhase, Stage
from tuner.families.attention.splits import Lengths, parts_of
from tuner.problems.points import Config, Point

ELEMENT_BYTES = 2
SPLIT_COLUMNS = {576: 512 + 64, 288: 256 + 32}  # heads that the kernels split into two tiles
L1_CLOCKS = 40.0


@dataclass(frozen=True)
class AttentionConstants:
    """The constants of attention's model, besides the ones that all models share."""

    common: Constants = Constants()
    score_instructions: float = 16.0  # per score: scale, mask, maximum, exponential, sum, rounding
    causal_instructions: float = 16.0  # per score among new tokens, extra: 64-bit position masks
    dot_instructions: float = 2.0  # per element of a key or value, without tensor cores
    plain_copies: float = 4.0  # cost of 16 bytes through registers, in asynchronous copies
    stall: float = 1.5  # clocks per instruction of a warp that is alone on its scheduler
    group_clocks: float = 400.0  # a step's waits if each warpgroup has separate rows
    exchange_clocks: float = 700.0  # a step's waits if warps exchange maxima, sums, probabilities
    warp_clocks: float = 50.0  # extra for each warp that exchanges
    skip_clocks: float = 300.0  # per tile outside the window: the kernel still makes its mask
    skip_instructions: float = 4.0  # per score of that mask
    split_clocks: float = 400.0  # per split of the reduction
    empty_instructions: float = 15.0  # per empty split of the reduction


@dataclass(frozen=True)
class TileCost:
    """The cost of one tile of keys, in clocks."""

    busy: float  # of the SM's busiest unit
    fill: float  # of the SM's path from L2
    chain: float  # of one block, including its waits
    lead: float  # before a loop's first step, until the prefetched tiles arrive


@dataclass(frozen=True)
class _Work:
    """A tile's work for an SM, which is the same in both loops."""

    mac_clocks: float
    read_bytes: float  # from shared memory
    scores: float
    other_instructions: float  # summed over threads
    exchanging: int  # warps that share rows; 0: each warpgroup has separate rows


class Steps:
    """The steps of one configuration, for all stages but the reduction."""

    def __init__(
        self,
        device: Device,
        problem: Attention,
        stage: Stage,
        config: Config,
        constants: AttentionConstants,
    ) -> None:
        self._device, self._problem, self._config = device, problem, config
        self._constants, self._arch = constants, device.architecture
        decode = stage is Stage.DECODE
        self._latent = bool(config.get("HAS_MLA", 0))  # values are taken out of the tile of keys
        self._dots = decode and problem.group == 1
        window = bool(problem.window) and not decode
        # Triton does not pipeline loads under an `if` (a window's), loads for which there is no
        # tensor core instruction, and tiles that are multiplied both plain and transposed.
        self._piped = config["num_stages"] > 1 and not (self._latent or self._dots or window)
        self.rows = config.get("BLOCK_M", config.get("BLOCK_H", 1))
        tall = not decode and self.rows >= 64 and config["num_warps"] % 4 == 0
        self._groups = self._arch.warpgroup and tall  # wgmma (sm_90) or tcgen05 (sm_100)
        self._columns = _columns(problem)
        columns, value_columns = self._columns
        loaded = columns + (0 if self._latent else value_columns)
        self._copied_bytes = config["BLOCK_N"] * loaded * ELEMENT_BYTES
        self._work = self._dot_work() if self._dots else self._tensor_work()

    def step(self, footprint: Footprint, latency: float, *, cached: bool) -> TileCost:
        """The step for a tile of the cache, which is read through indices, or of the new tokens.

        `latency`: clocks until the first bytes of a load arrive.
        """
        c, work, warps = self._constants, self._work, self._config["num_warps"]
        instructions = self._instructions(cached)
        threads = self._arch.target.warp_size * warps
        spilt = 2 * footprint.n_spills * threads / c.common.spill_bytes_per_clock
        reads = work.read_bytes / c.common.shared_bytes_per_clock
        copied = self._copied_bytes / c.common.shared_bytes_per_clock
        fill = self._copied_bytes / self._arch.l2_bytes_per_clock
        # Warps that exchange go through each phase together; warpgroups are independent.
        few = max(1.0, 4 / warps) if work.exchanging else 4 / warps
        issue = max(instructions / 4 * max(1.0, 4 / warps), c.stall * instructions / warps)
        waits = c.exchange_clocks if work.exchanging else c.group_clocks
        waits += c.warp_clocks * max(1, work.exchanging)
        alone = (work.mac_clocks + reads) * few + issue + waits + spilt * min(1.0, 4 / warps)
        ahead = self._ahead(cached)
        return TileCost(
            busy=max(work.mac_clocks, instructions / 4, copied + reads) + spilt,
            fill=fill,
            chain=self._chain(alone, latency, latency + fill, cached),
            lead=latency * (cached and ahead > 0) + (latency + ahead * fill) * (ahead > 1),
        )

    def skip_clocks(self, together: int) -> float:
        """Clocks of a tile outside the window if `together` blocks share an SM."""
        c = self._constants
        at_once = 4 * self._arch.target.warp_size  # threads: an SM has four schedulers
        masks = self._config["BLOCK_N"] * self.rows * c.skip_instructions / at_once
        return c.skip_clocks + together * masks

    def _chain(self, alone: float, index: float, tile: float, cached: bool) -> float:
        """Clocks of one block's step, of which `alone` are arithmetic."""
        stages, ahead = self._config["num_stages"], self._ahead(cached)
        if self._latent:
            # Only the index is prefetched one step ahead, into L1 by a load or into L2 by an
            # asynchronous copy.
            near = self._constants.common.l2_latency_ns * self._arch.clock_ghz
            return alone + (index, L1_CLOCKS, near)[min(stages, 3) - 1] + tile
        if ahead:
            return max(alone, (alone + tile) / ahead)
        return alone + tile + (index if cached else 0.0)

    def _ahead(self, cached: bool) -> int:
        """Tiles that Triton prefetches. In the cache half of the stages are for the indices."""
        stages = self._config["num_stages"] if self._piped else 1
        return (stages - 1) // 2 if cached else stages - 1

    def _instructions(self, cached: bool) -> float:
        """Instructions of the block's warps."""
        c, work = self._constants, self._work
        score = c.score_instructions + (0.0 if cached else c.causal_instructions)
        copy = c.common.copy_instructions * (1.0 if self._piped else c.plain_copies)
        threads = work.scores * score + work.other_instructions + copy * self._copied_bytes / 16
        overhead = c.common.step_instructions * self._config["num_warps"]
        return threads / self._arch.target.warp_size + overhead

    def _dot_work(self) -> _Work:
        elements = self._config["BLOCK_N"] * sum(self._columns)
        dots = elements * self._constants.dot_instructions
        return _Work(0.0, 0.0, 0.0, dots, exchanging=self._config["num_warps"])

    def _tensor_work(self) -> _Work:
        rows, keys, warps = self.rows, self._config["BLOCK_N"], self._config["num_warps"]
        columns, value_columns = self._columns
        rate = self._device.macs_per_clock(self._device.fp16_tflops)
        rate *= self._constants.common.mma_efficiency
        if self._groups:
            # Each warp multiplies 16 rows. Surplus warps repeat the work of others.
            done, value_groups = max(rows, 16 * warps), max(1, min(warps, rows // 16)) / 4
            macs = done * keys * columns + rows * keys * value_columns
            read = keys * (warps / 4 * columns + value_groups * value_columns) + done * columns
            return _Work(macs / rate, read * ELEMENT_BYTES, done * keys, 0.0, exchanging=0)
        if self._arch.warpgroup:
            rate *= self._arch.sync_rate
        down, across = (warps, 1) if rows >= value_columns else (1, warps)
        done, wide = max(rows, 16 * down), max(keys, 8 * across)
        macs = done * wide * columns + done * keys * max(value_columns, 8 * across)
        read = down * (wide * columns + keys * value_columns) + across * rows * (columns + keys)
        return _Work(macs / rate, read * ELEMENT_BYTES, done * wide, 0.0, exchanging=across)


def _columns(problem: Attention) -> tuple[int, int]:
    """The columns of a key and of a value that the kernels multiply, mostly powers of two."""
    columns = SPLIT_COLUMNS.get(problem.Lq, 1 << (problem.Lq - 1).bit_length())
    if problem.phase is AttentionPhase.EXTEND and problem.Lq == 192:
        columns = 128 + 64
    return columns, 1 << (problem.Lv - 1).bit_length()


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

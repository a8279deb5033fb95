"""The cost of one tile of keys for a block of an attention kernel, and for its SM.

The choice of instructions, the division of a tile among warps, and prefetching follow Triton 3.6
(AccelerateMatmul.cpp, Pipeliner/AssignLatencies.cpp), checked against the IR of sglang's kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from tuner.devices.constants import Constants
from tuner.devices.occupancy import Footprint
from tuner.devices.table import Device
from tuner.families.attention.problem import Attention, AttentionPhase, Stage
from tuner.problems.points import Config

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

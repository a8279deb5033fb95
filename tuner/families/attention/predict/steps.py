"""What one tile of keys costs a block of an attention kernel, and the SM that it runs on.

Which instructions multiply, how warps share a tile and what is loaded ahead follow Triton 3.6:
AccelerateMatmul.cpp and Pipeliner/AssignLatencies.cpp, checked on the IR of sglang's kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from tuner.devices.constants import Constants
from tuner.devices.occupancy import Footprint
from tuner.devices.table import Device
from tuner.families.attention.problem import Attention, Phase, Stage
from tuner.problems.points import Config

ELEMENT_BYTES = 2
SPLIT_COLUMNS = {576: 512 + 64, 288: 256 + 32}  # heads that the kernels cut in two
L1_CLOCKS = 40.0


@dataclass(frozen=True)
class AttentionConstants:
    """What attention adds to the constants of every model, which it uses as they are."""

    common: Constants = Constants()
    score_instructions: float = 16.0  # a score's: scale, mask, maximum, exponential, sum, rounding
    causal_instructions: float = 16.0  # more, among the new tokens: masks of 64-bit positions
    dot_instructions: float = 2.0  # an element's of a key or value, where no tensor core multiplies
    plain_copies: float = 4.0  # what 16 bytes through registers cost, in asynchronous copies
    stall: float = 1.5  # clocks an instruction of a warp that has a scheduler to itself
    group_clocks: float = 400.0  # a step's waits where each warpgroup has rows of its own
    exchange_clocks: float = 700.0  # and where warps exchange maxima, sums and probabilities
    warp_clocks: float = 50.0  # more, for each warp of those
    skip_clocks: float = 300.0  # a tile outside the window: its mask is made and found empty
    skip_instructions: float = 4.0  # a score's of that mask
    split_clocks: float = 400.0  # one split of the reduction
    empty_instructions: float = 15.0  # a split that the reduction finds empty


@dataclass(frozen=True)
class Step:
    """One tile of keys, in clocks."""

    busy: float  # of its SM's busiest unit
    fill: float  # of its SM's path from L2
    chain: float  # of one block, with what it waits for
    lead: float  # before the first of a loop, while what is loaded ahead arrives


@dataclass(frozen=True)
class _Work:
    """What a tile asks of an SM, in whichever loop it is."""

    mac_clocks: float
    read_bytes: float  # of shared memory
    scores: float
    other_instructions: float  # threads'
    exchanging: int  # warps that share rows; 0: each warpgroup has its own


class Steps:
    """Steps of one configuration of a stage with tiles (not of the reduction)."""

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
        # Triton leaves loads alone that stand under an `if` (a window's), that no tensor core
        # multiplies, or that are multiplied both as they are and transposed.
        self._piped = config["num_stages"] > 1 and not (self._latent or self._dots or window)
        self.rows = config.get("BLOCK_M", config.get("BLOCK_H", 1))
        tall = not decode and self.rows >= 64 and config["num_warps"] % 4 == 0
        self._groups = self._arch.warpgroup and tall  # wgmma (sm_90) or tcgen05 (sm_100)
        self._columns = _columns(problem)
        columns, value_columns = self._columns
        loaded = columns + (0 if self._latent else value_columns)
        self._copied_bytes = config["BLOCK_N"] * loaded * ELEMENT_BYTES
        self._work = self._dot_work() if self._dots else self._tensor_work()

    def step(self, footprint: Footprint, latency: float, *, cached: bool) -> Step:
        """A tile of the cache, whose keys are found through indices, or of the new tokens.

        `latency` is the clocks until the first bytes of a load are there.
        """
        c, work, warps = self._constants, self._work, self._config["num_warps"]
        instructions = self._instructions(cached)
        threads = self._arch.target.warp_size * warps
        spilt = 2 * footprint.n_spills * threads / c.common.spill_bytes_per_clock
        reads = work.read_bytes / c.common.shared_bytes_per_clock
        copied = self._copied_bytes / c.common.shared_bytes_per_clock
        fill = self._copied_bytes / self._arch.l2_bytes_per_clock
        # Warps that exchange go through each phase together; warpgroups run apart.
        few = max(1.0, 4 / warps) if work.exchanging else 4 / warps
        issue = max(instructions / 4 * max(1.0, 4 / warps), c.stall * instructions / warps)
        waits = c.exchange_clocks if work.exchanging else c.group_clocks
        waits += c.warp_clocks * max(1, work.exchanging)
        alone = (work.mac_clocks + reads) * few + issue + waits + spilt * min(1.0, 4 / warps)
        ahead = self._ahead(cached)
        return Step(
            busy=max(work.mac_clocks, instructions / 4, copied + reads) + spilt,
            fill=fill,
            chain=self._chain(alone, latency, latency + fill, cached),
            lead=latency * (cached and ahead > 0) + (latency + ahead * fill) * (ahead > 1),
        )

    def skip_clocks(self, together: int) -> float:
        """A tile outside the window, of one of so many blocks that share an SM."""
        c = self._constants
        at_once = 4 * self._arch.target.warp_size  # threads that an SM's schedulers issue for
        masks = self._config["BLOCK_N"] * self.rows * c.skip_instructions / at_once
        return c.skip_clocks + together * masks

    def _chain(self, alone: float, index: float, tile: float, cached: bool) -> float:
        """Clocks of one block's step, `alone` of them its arithmetic."""
        stages, ahead = self._config["num_stages"], self._ahead(cached)
        if self._latent:
            # The index alone is asked for a step ahead: by a load, which leaves it in L1, or by
            # an asynchronous copy, which leaves it in L2.
            near = self._constants.common.l2_latency_ns * self._arch.clock_ghz
            return alone + (index, L1_CLOCKS, near)[min(stages, 3) - 1] + tile
        if ahead:
            return max(alone, (alone + tile) / ahead)
        return alone + tile + (index if cached else 0.0)

    def _ahead(self, cached: bool) -> int:
        """Tiles that Triton asks for before they are needed: an index must come before its tile."""
        stages = self._config["num_stages"] if self._piped else 1
        return (stages - 1) // 2 if cached else stages - 1

    def _instructions(self, cached: bool) -> float:
        """Warps', of the block's."""
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
            # Each warp multiplies 16 rows; more warps than rows repeat each other's work.
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
    """Columns that the kernels multiply of a key and of a value: most are powers of two."""
    columns = SPLIT_COLUMNS.get(problem.Lq, 1 << (problem.Lq - 1).bit_length())
    if problem.phase is Phase.EXTEND and problem.Lq == 192:
        columns = 128 + 64
    return columns, 1 << (problem.Lv - 1).bit_length()

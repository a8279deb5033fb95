"""Predict the microseconds of a kernel that multiplies tiles; docs/predict.md explains the model.

A fused-MoE layer's gemm and a dense GEMM differ in their blocks of rows and in what they do with
scales; the rest is one model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from tuner.devices.constants import Constants
from tuner.devices.occupancy import (
    Footprint,
    TensorStep,
    blocks_per_sm,
    rounds_of_work,
    tensor_step,
)
from tuner.devices.table import Device
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config

CACHE_LINE_BYTES = 128
DRAM_PAGE_BYTES = 1024


@dataclass(frozen=True)
class RowBlocks:
    """The blocks of rows of a launch; each is launched once for each tile along N."""

    weights: float  # matrices B that are read: the experts with tokens, or 1
    blocks: float  # blocks with rows
    rows: float  # rows per block, without padding
    empty_blocks: float = 0.0  # further blocks of the launch, which return at once


@dataclass(frozen=True)
class Product:
    """A launch: each matrix B is (columns, reduced), and C has `outputs` rows."""

    columns: int
    reduced: int
    outputs: int  # rows of C
    inputs: int  # rows of A that are read at least once
    load: RowBlocks
    splits: int = 1  # parts that the reduced length is split into, each with blocks of its own


@dataclass(frozen=True)
class Prediction:
    """The predicted microseconds of one launch, and their parts."""

    total_us: float
    latency_us: float  # of waves of blocks, each a chain of dependent loads and steps
    sm_us: float  # of an SM's busiest unit
    dram_us: float
    empty_us: float  # of blocks without rows
    blocks_per_sm: int


class GemmModel:
    """Predicts launches of one kind of kernel on one device.

    `rescales`: how often an accumulator is scaled or converted in each step along k.
    """

    def __init__(
        self,
        device: Device,
        dtype: Dtype,
        rescales: int,
        constants: Constants = Constants(),
    ) -> None:
        self._device = device
        self._dtype = dtype
        self._rescales = rescales
        self._constants = constants
        self._arch = device.architecture
        self._a_bytes = dtype.activation_bits / 8
        self._b_bytes = dtype.weight_bits / 8
        self._tensor_step = lru_cache(maxsize=None)(self._step)

    def _step(self, config: Config, swap: bool) -> TensorStep:
        return tensor_step(self._dtype, self._device, config, swap)

    def predict(
        self, product: Product, config: Config, footprint: Footprint, swap: bool
    ) -> Prediction:
        """Predict one launch. `swap`: the kernel swaps A and B, see `uses_warpgroup`."""
        c, device, load = self._constants, self._device, product.load
        tiles_n = math.ceil(product.columns / config["BLOCK_SIZE_N"]) * product.splits
        steps = math.ceil(product.reduced / config["BLOCK_SIZE_K"] / product.splits)
        resident = blocks_per_sm(device, config["num_warps"], footprint)
        per_sm = load.blocks * tiles_n / device.sm_count
        serial, busy = self._step_clocks(load, config, footprint, swap)
        end_clocks = load.rows * config["BLOCK_SIZE_N"] * 2 / self._arch.l2_bytes_per_clock
        chain_ns = self._chain_ns(load, config, steps, serial / self._arch.clock_ghz)
        latency_us = rounds_of_work(per_sm / resident) * chain_ns / 1e3
        sm_us = rounds_of_work(per_sm) * (steps * busy + end_clocks) / self._arch.clock_ghz / 1e3
        dram_us = self._dram_us(product, config)
        together = sum(t**c.norm for t in (latency_us, sm_us, dram_us)) ** (1 / c.norm)
        empty = load.empty_blocks * tiles_n / device.sm_count / resident
        empty_us = empty * c.empty_ns / 1e3
        return Prediction(
            c.launch_us + together + empty_us, latency_us, sm_us, dram_us, empty_us, resident
        )

    def _step_clocks(
        self, load: RowBlocks, config: Config, footprint: Footprint, swap: bool
    ) -> tuple[float, float]:
        """Clocks of a step along k, for one block alone and for its SM's busiest unit."""
        c, warps = self._constants, config["num_warps"]
        depth, threads = config["BLOCK_SIZE_K"], self._arch.target.warp_size * warps
        a, b = self._a_bytes * depth, self._b_bytes * config["BLOCK_SIZE_N"] * depth
        step = self._tensor_step(config, swap)
        copied = config["BLOCK_SIZE_M"] * a + b
        shared = (copied + step.shared_read_bytes) / c.shared_bytes_per_clock
        instructions = c.step_instructions + c.copy_instructions * copied / 16 / threads
        accumulators = config["BLOCK_SIZE_M"] * config["BLOCK_SIZE_N"] / threads
        instructions += accumulators * (c.rescale_instructions * self._rescales)
        # Each of an SM's four schedulers issues one warp's instruction per clock.
        issue = max(1.0, warps / 4) * instructions + step.converted / c.converted_per_clock
        spilt = 2 * footprint.n_spills * threads / c.spill_bytes_per_clock
        l2 = (load.rows * a + b) / self._arch.l2_bytes_per_clock
        mma, read = step.mac_clocks / c.mma_efficiency, step.shared_read_bytes
        alone = c.step_clocks + max(mma, read / c.shared_bytes_per_clock) + issue + spilt
        return alone, max(mma, shared, issue, l2) + spilt

    def _chain_ns(self, load: RowBlocks, config: Config, steps: int, step_ns: float) -> float:
        """Nanoseconds of one block, from its launch to its stores.

        A step's tile is requested at the end of the step `depth` before it. So `depth` steps take
        either a latency and a step, or the sum of their times, whichever is longer.
        """
        c, depth = self._constants, max(1, config["num_stages"] - 1)
        # A matrix's first block reads its weights from memory, the others read them from L2.
        first = min(1.0, load.weights / load.blocks)
        latency = c.l2_latency_ns + first * (c.dram_latency_ns - c.l2_latency_ns)
        rounds, last = divmod(steps - 1, depth)
        loop = rounds * max(latency + step_ns, depth * step_ns) + (last + 1) * step_ns
        return c.start_ns + latency + loop + c.end_ns

    def _dram_us(self, product: Product, config: Config) -> float:
        c, device, reduced = self._constants, self._device, product.reduced
        weights = product.columns * reduced * self._b_bytes  # bytes of one matrix
        b = self._refetched(product.load, config, weights) * weights
        a = self._activation_bytes(product, config)
        # If the reduced length is split, float32 parts are written, which another kernel adds up.
        each = 4 * product.splits if product.splits > 1 else 2
        output = product.outputs * product.columns * each
        b_us, rest_us = (n / device.bandwidth_gbs / 1e3 for n in (b, a + output))
        piece = config["BLOCK_SIZE_K"] * self._b_bytes
        efficiency = c.dram_efficiency
        if piece < CACHE_LINE_BYTES and reduced * self._b_bytes > DRAM_PAGE_BYTES:
            b_us /= c.short_row ** math.log2(CACHE_LINE_BYTES / piece)
        return (b_us + rest_us) / efficiency

    def _refetched(self, load: RowBlocks, config: Config, weights: float) -> float:
        """How often a matrix is read from memory, summed over the matrices.

        Blocks of one matrix in the same group share its weights. Between groups all of the
        matrix passes through L2, which may lose it.
        """
        each = load.blocks / load.weights  # blocks per matrix
        apart = math.ceil(each / config.get("GROUP_SIZE_M", 1)) if each > 1 else 1
        lost = max(0.0, 1 - self._device.l2_bytes / weights)
        return load.weights * (1 + (apart - 1) * lost)

    def _activation_bytes(self, product: Product, config: Config) -> float:
        """Bytes of A that are read from memory: once, and again for each column of tiles if a
        group's rows and its weights do not stay in L2.
        """
        load, reduced = product.load, product.reduced
        group = min(config.get("GROUP_SIZE_M", 1), load.blocks)
        row = reduced * self._a_bytes
        matrices = max(1.0, group * load.weights / load.blocks)
        beside = group * load.rows * row
        beside += matrices * config["BLOCK_SIZE_N"] * reduced * self._b_bytes
        lost = max(0.0, 1 - self._device.l2_bytes / beside)
        passes = math.ceil(product.columns / config["BLOCK_SIZE_N"]) - 1
        return product.inputs * row + product.outputs * row * passes * lost

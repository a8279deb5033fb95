"""Predict the microseconds of a kernel that multiplies tiles.

First estimate a block's share of a multiprocessor, and how many blocks it holds at once. These
estimates are good enough to choose the kernels to compile: only the compiler knows whether a kernel
fits. The choice of tensor-core instructions and the division among warps follow Triton 3.6
(lib/Dialect/TritonGPU/Transforms/AccelerateMatmul.cpp). Then apply the model: a fused-MoE layer's
gemm and a dense GEMM differ in their blocks of rows and in their scales; all else is equal.

    total = launch + (latency^p + sm^p + dram^p)^(1/p) + empty blocks

There are three limits, and none hides the others completely. With p = 3, two equal limits together
take 26 % longer than one.

Latency: a block waits for its sorted tokens and its first tiles, runs its steps along k, and stores
the result. It requests the tile of step i when step i - depth is done, with depth = num_stages - 1.
So depth steps take max(latency + step, depth * step). Tiles come from memory for an expert's first
block and from L2 for its other blocks. Blocks run in waves of SMs x occupancy.

SM: the time of the busiest of four units for one step, times the blocks that an SM gets. Tensor
cores: a tile of fewer than 64 rows (columns, if sglang swaps the operands) falls back to mma.sync
on Hopper and Blackwell, which converts fp8 to fp16 and reaches a share of the peak. Shared memory:
a tile is written once, and read as often as warps read it. Instruction issue: each warp pays for
the loop, for every 16 bytes that it copies, and for every accumulator that is scaled or converted
in a step. L2: the rows that are not padding, and the weights' tile. Spills go through L1 in each
step.

DRAM: the weights of the touched experts, the activations and the output, by the bandwidth. If more
than the L2 holds passes before they are used again, they are read again. A row of a weight tile
that is shorter than a cache line wastes bandwidth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from tuner.devices.constants import Constants
from tuner.devices.table import Device
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config
from tuner.problems.results import Compiled

LEAST_REGISTERS = 16  # a thread is given at least so many


@dataclass(frozen=True)
class Footprint:
    """The resources of its SM that a block needs."""

    shared_bytes: int
    n_regs: int  # registers of a thread
    n_spills: int = 0  # bytes a thread spills

    @classmethod
    def of(cls, compiled: Compiled) -> Footprint:
        """Return the footprint of a kernel that compiled."""
        assert compiled.shared_bytes is not None
        return cls(compiled.shared_bytes, compiled.n_regs or 0, compiled.n_spills or 0)


def blocks_per_sm(device: Device, warps: int, footprint: Footprint) -> int:
    """Return the number of blocks that an SM holds at once, at least 1."""
    arch = device.architecture
    steps = math.ceil(max(footprint.n_regs, LEAST_REGISTERS) / arch.register_step)
    registers = steps * arch.register_step * arch.target.warp_size * warps
    shared = max(1, footprint.shared_bytes + arch.shared_reserved_bytes)  # AMD's kernels may use 0
    return max(
        1,
        min(
            arch.shared_per_sm_bytes // shared,
            arch.registers_per_sm // registers,
            arch.max_warps_per_sm // warps,
            arch.max_blocks_per_sm,
        ),
    )


def rounds_of_work(share: float) -> float:
    """Return the rounds of work. If there are several, the last is half full on average."""
    return share + 0.5 if share > 1 else 1.0


def estimate_footprint(
    dtype: Dtype, device: Device, config: Config, *, swap: bool, two_sums: bool
) -> Footprint:
    """Estimate the shared memory, registers and spills of a kernel of Triton 3.6.

    `swap`: as `uses_warpgroup`. `two_sums`: a step's sums are scaled or converted before they are
    added, so they need registers besides the total's.
    """
    threads = device.target.warp_size * config["num_warps"]
    accumulators = config["BLOCK_SIZE_M"] * config["BLOCK_SIZE_N"] // threads
    regs = 45 + accumulators * (1 + two_sums)
    most = device.architecture.max_registers_per_thread
    shared = _shared_bytes(dtype, device, config, swap)
    return Footprint(shared, min(most, regs), 4 * max(0, regs - most))


def _shared_bytes(dtype: Dtype, device: Device, config: Config, swap: bool) -> int:
    bits = config["BLOCK_SIZE_M"] * dtype.activation_bits
    bits += config["BLOCK_SIZE_N"] * dtype.weight_bits
    # Warpgroup instructions read a tile while others arrive, so they need one more buffer.
    buffers = max(1, config["num_stages"] - (not uses_warpgroup(device, config, swap)))
    scales = 4 * max(config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"])
    return buffers * bits * config["BLOCK_SIZE_K"] // 8 + scales


@dataclass(frozen=True)
class TensorStep:
    """The cost of a block's step of BLOCK_SIZE_K."""

    warpgroup: bool
    mac_clocks: float  # of the SM's tensor cores at peak rate
    shared_read_bytes: float  # counts an operand as often as warps read it
    converted: float  # elements that are converted to another type before the product


def uses_warpgroup(device: Device, config: Config, swap: bool) -> bool:
    """Say whether the tile is tall enough for wgmma (sm_90) or tcgen05 (sm_100).

    `swap`: the kernel swaps A and B, so that weights are the instruction's 64 rows.
    """
    rows = config["BLOCK_SIZE_N" if swap else "BLOCK_SIZE_M"]
    return device.architecture.warpgroup and rows >= 64 and config["num_warps"] % 4 == 0


def tensor_step(dtype: Dtype, device: Device, config: Config, swap: bool) -> TensorStep:
    """Return the cost of a step, at the device table's peak rate for the dtype."""
    rows, columns = config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"]
    if swap:
        rows, columns = columns, rows
    if uses_warpgroup(device, config, swap):
        return _warpgroup_step(dtype, device, config, rows, columns)
    return _sync_step(dtype, device, config, rows, columns)


def _warpgroup_step(
    dtype: Dtype, device: Device, config: Config, rows: int, columns: int
) -> TensorStep:
    depth = config["BLOCK_SIZE_K"]
    down, across = 1, 1  # warpgroups
    while down * across * 4 < config["num_warps"]:
        if rows > 64 * down:
            down *= 2
        else:
            across *= 2
    width = max(8.0, columns / across)  # of one instruction
    instructions = rows / 64 * across
    rate = device.macs_per_clock(_peak(dtype, device))
    operand_bytes = dtype.activation_bits / 8
    return TensorStep(
        warpgroup=True,
        mac_clocks=instructions * 64 * width * depth / rate,
        shared_read_bytes=instructions * (64 + width) * depth * operand_bytes,
        converted=config["BLOCK_SIZE_N"] * depth if _unpacks(dtype) else 0.0,
    )


def _sync_step(dtype: Dtype, device: Device, config: Config, rows: int, columns: int) -> TensorStep:
    arch, depth = device.architecture, config["BLOCK_SIZE_K"]
    down, across = 1, 1  # warps
    while down * across < config["num_warps"]:
        if rows / 16 / down >= columns / 16 / across and down < rows / 16:
            down *= 2
        else:
            across *= 2
    # If there are more warps than 16 x 8 instructions, they repeat the work of others.
    rows, columns = max(rows, 16 * down), max(columns, 8 * across)
    peak, converted = _peak(dtype, device), 0.0
    if _unpacks(dtype):
        converted = columns * down * depth
    elif dtype is Dtype.FP8_W8A8 and not arch.sync_fp8:
        peak, converted = device.fp16_tflops, (rows * across + columns * down) * depth
    read = rows * across * dtype.activation_bits + columns * down * dtype.weight_bits
    return TensorStep(
        warpgroup=False,
        mac_clocks=rows * columns * depth / (device.macs_per_clock(peak) * arch.sync_rate),
        shared_read_bytes=read / 8 * depth,
        converted=converted,
    )


def _unpacks(dtype: Dtype) -> bool:
    """Say whether weights are narrower than activations, so that they are converted first."""
    return dtype.weight_bits < dtype.activation_bits


def _peak(dtype: Dtype, device: Device) -> float:
    return device.peak_tflops(dtype) or device.fp16_tflops


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
    """The predicted microseconds of a launch, and their parts."""

    total_us: float
    latency_us: float  # of waves of blocks, each a series of dependent loads and steps
    sm_us: float  # of an SM's busiest unit
    dram_us: float
    empty_us: float  # of blocks without rows
    blocks_per_sm: int


class GemmModel:
    """A model that predicts launches of a kind of kernel on a device.

    `rescales`: how often an accumulator is scaled or converted in each step along k.
    """

    def __init__(
        self, device: Device, dtype: Dtype, rescales: int, constants: Constants = Constants()
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
        """Predict a launch. `swap`: the kernel swaps A and B, see `uses_warpgroup`."""
        c, device, load = self._constants, self._device, product.load
        tiles_n = math.ceil(product.columns / config["BLOCK_SIZE_N"]) * product.splits
        steps = math.ceil(product.reduced / config["BLOCK_SIZE_K"] / product.splits)
        resident = blocks_per_sm(device, config["num_warps"], footprint)
        per_sm = load.blocks * tiles_n / device.sm_count
        serial, busy = self._step_clocks(load, config, footprint, swap)
        end_clocks = load.rows * config["BLOCK_SIZE_N"] * 2 / self._arch.l2_bytes_per_clock
        block_ns = self._block_ns(load, config, steps, serial / self._arch.clock_ghz)
        latency_us = rounds_of_work(per_sm / resident) * block_ns / 1e3
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
        """Return the clocks of a step along k, for a block alone and for its SM's busiest unit."""
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

    def _block_ns(self, load: RowBlocks, config: Config, steps: int, step_ns: float) -> float:
        """Return the nanoseconds of a block, from its launch to its stores.

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
        """Return how often a matrix is read from memory, summed over the matrices.

        Blocks of the same matrix in a group share its weights. Between groups all of the matrix
        passes through L2, which may lose it.
        """
        each = load.blocks / load.weights  # blocks per matrix
        apart = math.ceil(each / config.get("GROUP_SIZE_M", 1)) if each > 1 else 1
        lost = max(0.0, 1 - self._device.l2_bytes / weights)
        return load.weights * (1 + (apart - 1) * lost)

    def _activation_bytes(self, product: Product, config: Config) -> float:
        """Return the bytes of A that are read from memory.

        They are read once, and again for each column of tiles if a group's rows and its weights do
        not stay in L2.
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

"""What a block takes of a multiprocessor, and how many blocks it holds at once.

The estimates are good enough to choose what to compile. Only the compiler knows what fits. The
choice of tensor-core instructions and the division among warps follow Triton 3.6
(lib/Dialect/TritonGPU/Transforms/AccelerateMatmul.cpp).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tuner.devices.table import Device
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config
from tuner.problems.results import Compiled

LEAST_REGISTERS = 16  # a thread is given at least so many


@dataclass(frozen=True)
class Footprint:
    """The resources that one block needs of its SM."""

    shared_bytes: int
    n_regs: int  # registers of a thread
    n_spills: int = 0  # bytes a thread spills

    @classmethod
    def of(cls, compiled: Compiled) -> Footprint:
        """The footprint of a kernel that compiled."""
        assert compiled.shared_bytes is not None
        return cls(compiled.shared_bytes, compiled.n_regs or 0, compiled.n_spills or 0)


def blocks_per_sm(device: Device, warps: int, footprint: Footprint) -> int:
    """Blocks that an SM holds at once, at least 1."""
    arch = device.architecture
    steps = math.ceil(max(footprint.n_regs, LEAST_REGISTERS) / arch.register_step)
    registers = steps * arch.register_step * arch.target.warp_size * warps
    return max(
        1,
        min(
            arch.shared_per_sm_bytes // (footprint.shared_bytes + arch.shared_reserved_bytes),
            arch.registers_per_sm // registers,
            arch.max_warps_per_sm // warps,
            arch.max_blocks_per_sm,
        ),
    )


def rounds_of_work(share: float) -> float:
    """Rounds of work. If there are several, the last is half full on average."""
    return share + 0.5 if share > 1 else 1.0


def estimate_footprint(
    dtype: Dtype, device: Device, config: Config, *, swap: bool, two_sums: bool
) -> Footprint:
    """The shared memory, registers and spills that Triton 3.6 will probably need.

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
    """The cost of one block's step of BLOCK_SIZE_K."""

    warpgroup: bool
    mac_clocks: float  # of the SM's tensor cores at peak rate
    shared_read_bytes: float  # counts an operand as often as warps read it
    converted: float  # elements that are converted to another type before the product


def uses_warpgroup(device: Device, config: Config, swap: bool) -> bool:
    """Whether the tile is tall enough for wgmma (sm_90) or tcgen05 (sm_100).

    `swap`: the kernel swaps A and B, so that weights are the instruction's 64 rows.
    """
    rows = config["BLOCK_SIZE_N" if swap else "BLOCK_SIZE_M"]
    return device.architecture.warpgroup and rows >= 64 and config["num_warps"] % 4 == 0


def tensor_step(dtype: Dtype, device: Device, config: Config, swap: bool) -> TensorStep:
    """The cost of one step, at the device table's peak rate for the dtype."""
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
    """Whether weights are narrower than activations, so that they are converted first."""
    return dtype.weight_bits < dtype.activation_bits


def _peak(dtype: Dtype, device: Device) -> float:
    return device.peak_tflops(dtype) or device.fp16_tflops

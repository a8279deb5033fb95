"""Estimate a block's resources before it is compiled.

The estimates are good enough to choose what to compile. Only the compiler knows what fits.
"""

from __future__ import annotations

from tuner.devices.occupancy import Footprint
from tuner.devices.table import Device
from tuner.families.fused_moe.predict.tensor_cores import uses_warpgroup
from tuner.families.fused_moe.problem import FusedMoe
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config


def estimate_footprint(problem: FusedMoe, device: Device, config: Config) -> Footprint:
    """The shared memory, registers and spills that Triton 3.6 will probably need."""
    regs = _registers(problem, device, config)
    most = device.architecture.max_registers_per_thread
    return Footprint(
        _shared_bytes(problem, device, config), min(most, regs), 4 * max(0, regs - most)
    )


def _shared_bytes(problem: FusedMoe, device: Device, config: Config) -> int:
    bits = config["BLOCK_SIZE_M"] * problem.dtype.activation_bits
    bits += config["BLOCK_SIZE_N"] * problem.dtype.weight_bits
    # Warpgroup instructions read a tile while others arrive, so they need one more buffer.
    buffers = max(1, config["num_stages"] - (not uses_warpgroup(problem, device, config)))
    scales = 4 * max(config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"])
    return buffers * bits * config["BLOCK_SIZE_K"] // 8 + scales


def _registers(problem: FusedMoe, device: Device, config: Config) -> int:
    threads = device.target.warp_size * config["num_warps"]
    accumulators = config["BLOCK_SIZE_M"] * config["BLOCK_SIZE_N"] // threads
    # If a step's sums are scaled or converted, they need registers besides the total's.
    twice = problem.block_shape is not None or problem.dtype is Dtype.INT8_W8A8
    return 45 + accumulators * (1 + twice)

"""Estimates of what a block will ask of its SM, before it is compiled.

Good enough to choose what to compile, never to say what fits: only the compiler knows that.
"""

from __future__ import annotations

from tuner.devices.occupancy import Footprint
from tuner.devices.table import Device
from tuner.families.fused_moe.predict.tensor_cores import uses_warpgroup
from tuner.families.fused_moe.problem import FusedMoe
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config


def estimate_footprint(problem: FusedMoe, device: Device, config: Config) -> Footprint:
    """Shared memory, registers and spills that Triton 3.6 is likely to need."""
    regs = _registers(problem, device, config)
    most = device.architecture.max_registers_per_thread
    return Footprint(
        _shared_bytes(problem, device, config),
        min(most, regs),
        4 * max(0, regs - most),
    )


def _shared_bytes(problem: FusedMoe, device: Device, config: Config) -> int:
    bits = config["BLOCK_SIZE_M"] * problem.dtype.activation_bits
    bits += config["BLOCK_SIZE_N"] * problem.dtype.weight_bits
    # Warpgroup instructions read a tile while the next ones arrive, so they need one more.
    buffers = max(1, config["num_stages"] - (not uses_warpgroup(problem, device, config)))
    scales = 4 * max(config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"])
    return buffers * bits * config["BLOCK_SIZE_K"] // 8 + scales


def _registers(problem: FusedMoe, device: Device, config: Config) -> int:
    threads = device.target.warp_size * config["num_warps"]
    accumulators = config["BLOCK_SIZE_M"] * config["BLOCK_SIZE_N"] // threads
    # A step's own sums stand beside the total where they are scaled or converted first.
    twice = problem.block_shape is not None or problem.dtype is Dtype.INT8_W8A8
    return 45 + accumulators * (1 + twice)

"""Estimates of what a block will ask of its SM, before it is compiled.

Good enough to choose what to compile, never to say what fits: only the compiler knows that.
"""

from __future__ import annotations

from tuner.devices.table import Device
from tuner.families.fused_moe.predict.device_model import Footprint
from tuner.families.fused_moe.predict.tensor_cores import uses_warpgroup
from tuner.families.fused_moe.problem import FusedMoe
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config

MOST_REGISTERS = 255  # a thread's, on every architecture since Kepler


def estimate_footprint(problem: FusedMoe, device: Device, config: Config) -> Footprint:
    """Shared memory, registers and spills that Triton 3.6 is likely to need."""
    regs = _registers(problem, config)
    return Footprint(
        _shared_bytes(problem, device, config),
        min(MOST_REGISTERS, regs),
        4 * max(0, regs - MOST_REGISTERS),
    )


def _shared_bytes(problem: FusedMoe, device: Device, config: Config) -> int:
    bits = config["BLOCK_SIZE_M"] * problem.dtype.activation_bits
    bits += config["BLOCK_SIZE_N"] * problem.dtype.weight_bits
    # Warpgroup instructions read a tile while the next ones arrive, so they need one more.
    buffers = max(1, config["num_stages"] - (not uses_warpgroup(problem, device, config)))
    scales = 4 * max(config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"])
    return buffers * bits * config["BLOCK_SIZE_K"] // 8 + scales


def _registers(problem: FusedMoe, config: Config) -> int:
    accumulators = config["BLOCK_SIZE_M"] * config["BLOCK_SIZE_N"] // (32 * config["num_warps"])
    # A step's own sums stand beside the total where they are scaled or converted first.
    twice = problem.block_shape is not None or problem.dtype is Dtype.INT8_W8A8
    return 45 + accumulators * (1 + twice)

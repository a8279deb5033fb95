"""The least time of a gemm of a fused-MoE layer. No torch."""

from __future__ import annotations

from tuner.devices.roofline import roofline_us
from tuner.devices.table import Device
from tuner.families.fused_moe.problem import FusedMoe, Gemm, gemm_of
from tuner.problems.points import Point

_OUTPUT_BYTES = 2  # of a number that a gemm writes: 16 bits


def least_us(problem: FusedMoe, point: Point, device: Device) -> float:
    """Microseconds of one launch at least; see `roofline_us`. Scales are not counted.

    Only the weights of experts with a token are read. Each token goes to `top_k` experts, each
    equally likely, so the expected number of these experts counts.
    """
    gemm, tokens, dtype = gemm_of(point), point.batch_size, problem.dtype
    columns, reduced = problem.gemm_shape(gemm)
    routed = tokens * problem.top_k
    experts = problem.E * (1 - (1 - problem.top_k / problem.E) ** tokens)
    rows = tokens if gemm is Gemm.UP else routed
    return roofline_us(
        device,
        dtype,
        operations=2.0 * routed * columns * reduced,
        cold_bytes=experts * columns * reduced * dtype.weight_bits / 8,
        warm_bytes=rows * reduced * dtype.activation_bits / 8 + routed * columns * _OUTPUT_BYTES,
    )


def held_bytes(problem: FusedMoe, point: Point) -> int:
    """Bytes of the card's memory that one launch needs at least: its weights and its output."""
    columns, reduced = problem.gemm_shape(gemm_of(point))
    weights = problem.E * columns * reduced * problem.dtype.weight_bits // 8
    return weights + point.batch_size * problem.top_k * columns * _OUTPUT_BYTES

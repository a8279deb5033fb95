"""The least time of a dense GEMM. No torch."""

from __future__ import annotations

from tuner.devices.roofline import roofline_us
from tuner.devices.table import Device
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.problems.points import Point


def least_us(problem: DenseGemm, point: Point, device: Device) -> float:
    """Microseconds of one launch at least; see `roofline_us`. Scales are not counted."""
    rows, columns, reduced = point.batch_size, problem.N, problem.K
    read = rows * reduced * problem.dtype.activation_bits / 8
    return roofline_us(
        device,
        problem.dtype,
        operations=2.0 * rows * columns * reduced,
        cold_bytes=columns * reduced * problem.dtype.weight_bits / 8,
        warm_bytes=read + rows * columns * problem.out.activation_bits / 8,
    )


def held_bytes(problem: DenseGemm, point: Point) -> int:
    """Bytes of the card's memory that one launch needs at least: A, B and C, without scales."""
    rows, columns, reduced = point.batch_size, problem.N, problem.K
    read = rows * reduced * problem.dtype.activation_bits
    weights = columns * reduced * problem.dtype.weight_bits
    return (read + weights + rows * columns * problem.out.activation_bits) // 8

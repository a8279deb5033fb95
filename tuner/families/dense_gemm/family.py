"""The registry entry of quantised dense GEMMs; importing it loads no heavy module."""

from __future__ import annotations

from tuner.devices.roofline import roofline_us
from tuner.devices.table import Device
from tuner.families.dense_gemm.problem import (
    BATCH_SIZES,
    DENSE_GEMMS,
    DenseGemm,
    DensePart,
    parse_dense_gemm,
    same_weights,
)
from tuner.problems.options import BATCHES, COUNT, DP, EP, FUSE_SHARED, Option, SizeSelection
from tuner.problems.points import ChartPosition, Point
from tuner.problems.registry import Family


class GemmSelection(SizeSelection):
    """Batch sizes (rows of A)."""

    part = DensePart.DENSE
    default = BATCH_SIZES


def place(problem: DenseGemm, point: Point) -> ChartPosition:
    """Place a point in the family's single chart, by batch size."""
    return ChartPosition("dense GEMM", point.batch_size, "batch size (tokens)")


def least_us(problem: DenseGemm, point: Point, device: Device) -> float:
    """Return the least microseconds of a launch; see `roofline_us`. Scales are not counted."""
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
    """Return the least bytes of the card's memory that a launch needs: A, B and C, without
    scales.
    """
    rows, columns, reduced = point.batch_size, problem.N, problem.K
    read = rows * reduced * problem.dtype.activation_bits
    weights = columns * reduced * problem.dtype.weight_bits
    return (read + weights + rows * columns * problem.out.activation_bits) // 8


FAMILY = Family(
    name="dense_gemm",
    title="quantised dense GEMMs",
    problems=DENSE_GEMMS,
    example="block_gemm:N=..,K=..,dtype=..,block=..",
    parse=parse_dense_gemm,
    parts=DensePart,
    shaping=(
        DP,
        Option(
            "moe_dense_tp",
            "--moe-dense-tp",
            COUNT,
            "Tensor-parallel size of the layers without experts; default: that of --tp.",
            description="Tensor-parallel size of the layers without experts; default: that of tp.",
        ),
        # An engine runs fused shared experts in its fused-MoE kernel, and not as dense GEMMs.
        EP,
        FUSE_SHARED,
    ),
    selecting=(BATCHES,),
    searching=(),
    read_selection=GemmSelection.read,
    fields_of=lambda points: {"batch_sizes": [point.batch_size for point in points]},
    place=place,
    least_us=least_us,
    held_bytes=held_bytes,
    package="tuner.families.dense_gemm",
    alike=same_weights,
)

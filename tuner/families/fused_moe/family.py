"""Register fused-MoE layers, and read the batch sizes and gemms that a request asks for.

Importing this module loads no heavy module.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tuner.devices.roofline import roofline_us
from tuner.devices.table import Device
from tuner.errors import BadInput
from tuner.families.fused_moe.problem import BATCH_SIZES, FusedMoe, Gemm, gemm_of, parse_fused_moe
from tuner.problems.options import (
    BATCH_SIZE,
    BATCHES,
    COUNT,
    EP,
    FUSE_SHARED,
    GROUPS,
    SIZE,
    Block,
    Names,
    Option,
    Switch,
    checked_sizes,
)
from tuner.problems.points import ChartPosition, Point, Problem
from tuner.problems.registry import Family

_OUTPUT_BYTES = 2  # of a number that a gemm writes: 16 bits


def place(problem: FusedMoe, point: Point) -> ChartPosition:
    """Place a point: each gemm has a chart, by batch size."""
    return ChartPosition(f"{point.part.value} gemm", point.batch_size, "batch size (tokens)")


def least_us(problem: FusedMoe, point: Point, device: Device) -> float:
    """Return the least microseconds of a launch; see `roofline_us`. Scales are not counted.

    Only the weights of experts with a token are read. Routed experts are equally likely, so the
    expected number of experts with a token counts.
    """
    gemm, tokens, dtype = gemm_of(point), point.batch_size, problem.dtype
    columns, reduced = problem.gemm_shape(gemm)
    routed = tokens * problem.local_top_k
    likely = problem.routed_top_k / problem.all_routed
    experts = problem.shared_experts + problem.routed * (1 - (1 - likely) ** tokens)
    rows = tokens if gemm is Gemm.UP else routed
    return roofline_us(
        device,
        dtype,
        operations=2.0 * routed * columns * reduced,
        cold_bytes=experts * columns * reduced * dtype.weight_bits / 8,
        warm_bytes=rows * reduced * dtype.activation_bits / 8 + routed * columns * _OUTPUT_BYTES,
    )


def held_bytes(problem: FusedMoe, point: Point) -> int:
    """Return the least bytes of the card's memory that a launch needs: its weights and its
    output.
    """
    columns, reduced = problem.gemm_shape(gemm_of(point))
    weights = problem.E * columns * reduced * problem.dtype.weight_bits // 8
    return weights + point.batch_size * problem.top_k * columns * _OUTPUT_BYTES


GEMMS = Names(Gemm)


@dataclass(frozen=True)
class MoeSelection:
    """Batch sizes (tokens) and gemms of a layer. Raises BadInput for impossible values."""

    batch_sizes: tuple[int, ...] | None = None  # None: the engine's, or the recording's
    gemms: tuple[Gemm, ...] = tuple(Gemm)

    def __post_init__(self) -> None:
        if self.batch_sizes is not None:
            object.__setattr__(self, "batch_sizes", checked_sizes(self.batch_sizes))
        if not self.gemms:
            raise BadInput("a job needs at least one gemm: up, down, or both")

    @property
    def given(self) -> bool:
        return self.batch_sizes is not None

    def points(self, problem: Problem) -> frozenset[Point]:
        return _points(self.batch_sizes or BATCH_SIZES, self.gemms)

    def as_json(self) -> dict[str, Any]:
        return {
            "batch_sizes": None if self.batch_sizes is None else list(self.batch_sizes),
            "gemms": [gemm.value for gemm in self.gemms],
        }


@lru_cache(maxsize=64)  # pages of coverage ask for each request, and most are alike
def _points(sizes: tuple[int, ...], gemms: tuple[Gemm, ...]) -> frozenset[Point]:
    return frozenset(Point(size, gemm) for size in sizes for gemm in gemms)


def read_selection(problem: Problem, values: Mapping[str, Any]) -> MoeSelection:
    """Read the fields `batch_sizes` and `gemms`, which may be absent. Raises BadInput."""
    sizes, gemms = values.get("batch_sizes"), values.get("gemms")
    return MoeSelection(
        batch_sizes=None if sizes is None else tuple(sizes),
        gemms=tuple(Gemm) if gemms is None else GEMMS.members(gemms),
    )


def fields_of(points: Collection[Point]) -> dict[str, Any]:
    """Return the fields that name some points."""
    return {
        "batch_sizes": [point.batch_size for point in points],
        "gemms": [point.part.value for point in points],
    }


FAMILY = Family(
    name="fused_moe",
    title="a fused-MoE layer",
    problems=(FusedMoe.family,),
    example="fused_moe:E=..,N=..,K=..,top_k=..,dtype=..",
    parse=parse_fused_moe,
    parts=Gemm,
    shaping=(
        EP,
        Option(
            "block_shape",
            "--block-shape",
            Block(GROUPS, BATCH_SIZE),
            "Quantisation block, e.g. 128x128; default: the model's.",
            description="Quantisation block (n, k); default: the model's own.",
        ),
        FUSE_SHARED,
        Option(
            "hidden_size",
            "--hidden-size",
            SIZE,
            "Hidden size (K); needed only if the input lacks it.",
            description="For a warning that lacks it.",
        ),
        Option(
            "top_k",
            "--top-k",
            COUNT,
            "Experts of a token; needed only if the input lacks it.",
            description="For a warning that lacks it.",
        ),
    ),
    selecting=(
        BATCHES,
        Option(
            "gemms",
            "--gemm",
            GEMMS,
            "up (gate and up projection), down, or both: up,down (the default).",
            description="Which of a fused-MoE layer's two matrix products.",
            default=tuple(Gemm),
            offered=False,
        ),
    ),
    searching=(
        Option(
            "wide",
            "--wide/--grid",
            Switch(),
            "Search beyond the engine's own tuning grid; default: where times are measured.",
            description="Search beyond the engine's own grid; default: where times are measured.",
            offered=False,
        ),
    ),
    read_selection=read_selection,
    fields_of=fields_of,
    place=place,
    least_us=least_us,
    held_bytes=held_bytes,
    package="tuner.families.fused_moe",
    joins_runs=True,  # each gemm may be tuned in a separate run
)

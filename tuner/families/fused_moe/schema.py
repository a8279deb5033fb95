"""The fields of fused-MoE layers in a request body. This module needs Pydantic."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tuner.families.fused_moe.problem import Gemm
from tuner.problems.fields import BatchSize, Count, Flag, Groups, Size

# By field name: the type, and Pydantic's Field with the default.
FIELDS: dict[str, tuple[Any, Any]] = {
    "ep": (Count, Field(1, description="Expert-parallel size.")),
    "block_shape": (
        tuple[Groups, BatchSize] | None,
        Field(None, description="Quantisation block (n, k); default: the model's own."),
    ),
    "fuse_shared": (
        Flag | None,
        Field(
            None,
            description="Count shared experts among the routed ones; default: as the engine does.",
        ),
    ),
    "hidden_size": (Size | None, Field(None, description="For a warning that lacks it.")),
    "top_k": (Count | None, Field(None, description="For a warning that lacks it.")),
    "batch_sizes": (
        list[BatchSize] | None,
        Field(
            None,
            min_length=1,
            max_length=64,
            description="Tokens per batch of a fused-MoE layer; default: the engine's sizes.",
        ),
    ),
    "gemms": (
        list[Gemm],
        Field(
            [Gemm.UP, Gemm.DOWN],
            min_length=1,
            max_length=2,
            description="Which of a fused-MoE layer's two matrix products.",
        ),
    ),
    "wide": (
        Flag | None,
        Field(
            None,
            description="Search beyond the engine's own grid; default: where times are measured.",
        ),
    ),
}

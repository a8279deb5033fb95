"""Describe the linear layers of a model, and how ranks share each.

An engine divides a column-parallel layer's N and a row-parallel layer's K. The classes are in
sglang's srt/layers/linear.py: ColumnParallelLinear, MergedColumnParallelLinear, QKVParallelLinear,
RowParallelLinear, ReplicatedLinear. vLLM has the same classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tuner.models.quantization import Quantization
from tuner.problems.dtypes import Dtype

# sglang 0.4.4 runs DeepSeek's first layer as two. From 0.5.2 on it is one layer, for which both
# weights are concatenated (srt/models/deepseek_v2.py, DeepseekV2AttentionMLA).
FUSED_QKV_A = "self_attn.fused_qkv_a_proj_with_mqa"


class Split(Enum):
    """The way in which ranks share a layer's matrix."""

    COLUMN = "column"  # N is divided
    ROW = "row"  # K is divided
    NONE = "none"  # each rank has all of it


class Group(Enum):
    """The ranks that share a layer."""

    ATTENTION = "attention"  # tp / dp ranks
    DENSE = "dense"  # the MLP of a layer without experts
    SHARED = "shared"  # the experts that every token uses


@dataclass(frozen=True)
class Columns:
    """One of the matrices that are merged into a layer: its share of N."""

    size: int
    # Key and value columns: ranks share out this many heads, and hold copies if they are more.
    heads: int = 0


@dataclass(frozen=True)
class Linear:
    """A linear layer of the whole model, before it is divided over ranks."""

    name: str  # as the engine names it within a layer, e.g. "self_attn.qkv_proj"
    columns: tuple[Columns, ...]  # more than one: the engine merges them
    K: int
    split: Split
    group: Group
    scheme: Quantization  # of its weights; bfloat16 or float16 if it is not quantised
    count: int = 0  # how many layers of the model have it; 0: unknown
    checks_columns: bool = True  # whether the engine refuses columns that a block does not divide


@dataclass(frozen=True)
class LinearShape:
    """All linear layers of a model except routers and lm_head, which the engine does
    not quantise.
    """

    layers: tuple[Linear, ...]
    out: Dtype = Dtype.BFLOAT16  # of the layers' outputs; or float16
    data_parallel: bool = True  # whether the engine can run its attention data-parallel
    source: str = ""

    @property
    def quantised(self) -> bool:
        """Say whether a Triton GEMM reads any of the layers as the checkpoint stores them."""
        return any(not why_unread(layer.scheme) for layer in self.layers)


def why_unread(scheme: Quantization) -> str:
    """Say why no Triton GEMM reads weights of that scheme; "" if a GEMM does."""
    if scheme.kind == "none":
        return "not quantised"
    if scheme.dtype not in (Dtype.FP8_W8A8, Dtype.INT8_W8A8):
        return f"stored as {scheme.kind}"
    if scheme.block_shape or scheme.per_channel_quant:
        return ""
    # sglang's srt/layers/quantization/fp8.py: Fp8LinearMethod gives each column the scale of its
    # tensor (convert_to_channelwise). Other classes keep one scale for each tensor, with which
    # apply_fp8_linear runs no Triton kernel.
    return "" if scheme.kind == "fp8" else f"stored as {scheme.kind} with one scale for a tensor"

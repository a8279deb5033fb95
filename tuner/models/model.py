"""A mixture-of-experts model, and how tensor and expert parallelism divide it into a problem."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tuner.engines.sglang.fused_moe.shared_experts import NOT_FUSED, Fusion
from tuner.errors import BadProblem, IndivisibleShape
from tuner.families.fused_moe.problem import Dtype, FusedMoe
from tuner.models.attention import AttentionShape


@dataclass(frozen=True)
class Model:
    """A mixture-of-experts model as its checkpoint describes it, before any division."""

    name: str
    architecture: str  # the class that config.json names
    E: int  # routed experts
    intermediate: int  # columns of one expert's gate
    hidden: int
    top_k: int  # routed experts a token goes to
    n_shared_experts: int = 0
    shared_intermediate: int = 0  # columns of all shared experts together
    quantization: str = "none"  # the checkpoint's format, for messages
    dtype: Dtype | None = Dtype.BFLOAT16  # None: no Triton fused-MoE kernel reads the format
    block_shape: tuple[int, int] | None = None
    per_channel_quant: bool = False
    since: str = ""  # oldest looked-at sglang release that has the architecture; "" = unknown
    aliases: tuple[str, ...] = ()
    source: str = ""
    attention: AttentionShape | None = None  # None: not known


def moe_problem(
    model: Model,
    tp: int = 1,
    ep: int = 1,
    *,
    dtype: Dtype | None = None,
    block_shape: tuple[int, int] | None = None,
    fusion: Fusion = NOT_FUSED,
) -> FusedMoe:
    """The problem that one of `tp` ranks runs, of which groups of tp / ep share each expert.

    `dtype` replaces the checkpoint's own, and drops its quantisation block: int8_w8a8 is then per
    channel unless `block_shape` is given. Raises IndivisibleShape, which names the nearest tensor-
    or expert-parallel size that works, and BadProblem.
    """
    scheme = _scheme(model, dtype, block_shape)
    N = _divide(model, tp, ep, scheme[1])
    return FusedMoe(
        E=model.E // ep + fusion.experts,
        N=N,
        K=model.hidden,
        top_k=model.top_k + fusion.top_k,
        dtype=scheme[0],
        block_shape=scheme[1],
        per_channel_quant=scheme[2],
    )


def _scheme(
    model: Model, dtype: Dtype | None, block_shape: tuple[int, int] | None
) -> tuple[Dtype, tuple[int, int] | None, bool]:
    """(dtype, quantisation block, one scale a channel)"""
    if dtype is None and model.dtype is None:
        raise BadProblem(
            f"{model.name} is stored as {model.quantization}, which the Triton fused-MoE kernel "
            "cannot read: choose what the engine runs instead, e.g. --dtype bfloat16 or "
            "--dtype fp8_w8a8"
        )
    dtype = dtype or model.dtype
    assert dtype is not None
    if block_shape is not None:
        return dtype, block_shape, False
    if dtype is model.dtype:
        return dtype, model.block_shape, model.per_channel_quant
    return dtype, None, dtype is Dtype.INT8_W8A8


def _divide(model: Model, tp: int, ep: int, block_shape: tuple[int, int] | None) -> int:
    """N on one rank, or IndivisibleShape."""
    if tp < 1 or ep < 1:
        raise BadProblem(f"tensor- and expert-parallel sizes start at 1, not tp={tp}, ep={ep}")
    if tp % ep or model.E % ep:
        both = math.gcd(tp, model.E)
        near = _nearest(ep, [n for n in range(1, both + 1) if both % n == 0])
        raise IndivisibleShape(
            f"ep={ep} does not divide tp={tp} and the {model.E} experts of {model.name}; "
            f"the nearest that does is ep={near}"
        )
    block = (block_shape[0] or block_shape[1]) if block_shape else 1
    N, rest = divmod(model.intermediate, tp // ep)
    if not rest and N % block == 0:
        return N
    near_tp = _nearest(tp, _tensor_parallel_sizes(model.intermediate, ep, block))
    if rest:
        what = f"tp={tp} / ep={ep} does not divide the intermediate size {model.intermediate}"
    else:
        what = f"tp={tp} leaves N={N}, which the quantisation block of {block} does not divide"
    advice = f"the nearest that works is tp={near_tp}" if near_tp else "no tp works with this block"
    raise IndivisibleShape(f"{model.name}: {what}; {advice}")


def _tensor_parallel_sizes(intermediate: int, ep: int, block: int) -> list[int]:
    shards = intermediate // block if intermediate % block == 0 else 0
    sizes = [n for n in range(1, shards + 1) if shards % n == 0]
    # The attention heads, which must divide as well, nearly always do by a power of two alone.
    return [ep * n for n in sizes if n & (n - 1) == 0]


def _nearest(wanted: int, choices: list[int]) -> int | None:
    return min(choices, key=lambda n: (abs(n - wanted), n), default=None)

"""A mixture-of-experts model, as its checkpoint describes it."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.models.attention import AttentionShape
from tuner.problems.dtypes import Dtype


@dataclass(frozen=True)
class Model:
    """A mixture-of-experts model as its checkpoint describes it, before division over ranks."""

    name: str
    architecture: str  # the class that config.json names
    E: int  # routed experts
    intermediate: int  # columns of one expert's gate
    hidden: int
    top_k: int  # routed experts per token
    n_shared_experts: int = 0
    shared_intermediate: int = 0  # columns of all shared experts together
    quantization: str = "none"  # the checkpoint's format, for messages
    dtype: Dtype | None = Dtype.BFLOAT16  # None: no Triton fused-MoE kernel reads the format
    block_shape: tuple[int, int] | None = None
    per_channel_quant: bool = False
    since: str = ""  # oldest examined sglang release that has the architecture; "": unknown
    aliases: tuple[str, ...] = ()
    source: str = ""
    attention: AttentionShape | None = None  # None: not known

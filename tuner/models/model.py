"""A model, as its checkpoint describes it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from tuner.models.attention import AttentionShape
from tuner.models.delta_json import DeltaShape
from tuner.models.linears import LinearShape
from tuner.models.mamba_json import MambaShape
from tuner.problems.dtypes import Dtype


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model as its checkpoint describes it, before division over ranks."""

    name: str
    architecture: str  # the class that config.json names
    E: int = 0  # routed experts; 0: the model has none
    intermediate: int = 0  # columns of one expert's gate
    hidden: int
    top_k: int = 0  # routed experts per token
    n_shared_experts: int = 0
    shared_intermediate: int = 0  # columns of all shared experts together
    quantization: str = "none"  # the format of the experts, or of all layers, for messages
    dtype: Dtype | None = Dtype.BFLOAT16  # None: no Triton fused-MoE kernel reads the format
    block_shape: tuple[int, int] | None = None
    per_channel_quant: bool = False
    image_intermediate: int = 0  # columns of one expert for images; 0: such experts are no others
    detail: str = ""  # what is special in the format: see Quantization
    doubt: str = ""  # a clause: why the experts may be quantised otherwise than it says here
    since: str = ""  # oldest examined sglang release that has the architecture; "": unknown
    aliases: tuple[str, ...] = ()
    source: str = ""
    attention: AttentionShape | None = None  # None: not known
    linears: LinearShape | None = None  # None: not known
    mamba: MambaShape | None = None  # None: it has no Mamba-2 layers, or they are not known
    delta: DeltaShape | None = None  # None: it has no gated delta nets, or they are not known

    def as_json(self) -> dict[str, Any]:
        """The fields of `tuner models --json`. Linear layers are left out: they are many."""
        shown = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in (
            "linears",
            "detail",
            "doubt",
            "image_intermediate",
            "mamba",
            "delta",
        ):
            del shown[name]
        return shown | {"attention": asdict(self.attention) if self.attention else None}

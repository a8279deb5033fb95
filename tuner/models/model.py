"""Define a model, as its checkpoint describes it."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tuner.errors import MalformedCheckpoint
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
    hidden: int = 0
    top_k: int = 0  # routed experts per token
    n_shared_experts: int = 0
    shared_intermediate: int = 0  # columns of all shared experts together
    quantization: str = "none"  # the format of the experts, or of all layers, for messages
    dtype: Dtype | None = Dtype.BFLOAT16  # None: no Triton fused-MoE kernel reads the format
    block_shape: tuple[int, int] | None = None
    per_channel_quant: bool = False
    image_intermediate: int = 0  # columns of one expert for images; 0: such experts are no others
    detail: str = ""  # special features of the format: see Quantization
    doubt: str = ""  # a clause: why the experts may be quantised otherwise than it says here
    since: str = ""  # oldest examined sglang release that has the architecture; "": unknown
    aliases: tuple[str, ...] = ()
    source: str = ""
    attention: AttentionShape | None = None  # None: not known
    linears: LinearShape | None = None  # None: not known
    mamba: MambaShape | None = None  # None: it has no Mamba-2 layers, or they are not known
    delta: DeltaShape | None = None  # None: it has no gated delta nets, or they are not known
    # Why parts of a config.json were not read: "experts", "attention", "linears", "mamba", "delta".
    unread: Mapping[str, MalformedCheckpoint] = field(default_factory=dict, compare=False)

    def refuse_unread(self, part: str) -> None:
        """Raise MalformedCheckpoint or LacksLayers if that part of its config.json was not read."""
        if error := self.unread.get(part):
            raise copy(error)  # whoever catches it may add to its words

    @property
    def stored_as(self) -> str:
        """Say how experts are stored: type, format and special features; "" if it is not known.

        As "int4_w4a16 compressed-tensors int4 asymmetric", or "bfloat16 none".
        """
        plain = self.quantization.startswith("none")
        if "experts" in self.unread or self.dtype is None or (plain and self.doubt):
            return ""
        return f"{self.dtype.value} {self.quantization} {self.detail}".rstrip()

    def as_json(self) -> dict[str, Any]:
        """Return the fields of `tuner list models --json`: all but the many linear layers."""
        shown = {one.name: getattr(self, one.name) for one in fields(self)}
        for name in (
            "linears",
            "detail",
            "doubt",
            "image_intermediate",
            "mamba",
            "delta",
            "unread",
        ):
            del shown[name]
        return shown | {"attention": asdict(self.attention) if self.attention else None}

"""A model's attention, as its checkpoint describes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tuner.problems.dtypes import Dtype


@dataclass(frozen=True)
class Layers:
    """Those of a model's attention layers that have one shape, before any division."""

    q_heads: int
    kv_heads: int
    head_dim: int  # columns of a query's and of a key's head
    v_head_dim: int
    window: int = 0  # tokens before its own that a query sees; 0: all
    sinks: bool = False
    count: int = 0  # how many layers are such; 0: not told

    def works_with(self, tp: int) -> bool:
        """Whether the engine can divide them: key heads are divided, or else held by several."""
        kv = self.kv_heads
        return not (self.q_heads % tp or (kv % tp if kv >= tp else tp % kv))


@dataclass(frozen=True)
class AttentionShape:
    """A model's attention as its checkpoint describes it.

    Of latent (MLA) attention, `layers` has the form before absorption, with a key head for each
    query head; absorbed, one key of kv_lora_rank + qk_rope_head_dim columns serves all.
    """

    layers: tuple[Layers, ...]  # those that see everything first
    kv_lora_rank: int = 0  # 0: not latent
    qk_rope_head_dim: int = 0
    logit_cap: float = 0.0
    context_length: int = 0  # tokens, as the engine reads it; 0: not told
    dtype: Dtype = Dtype.BFLOAT16  # of queries, keys and values, whatever the weights are
    source: str = ""

    def __str__(self) -> str:
        first = self.layers[0]
        if self.kv_lora_rank:
            return f"{first.q_heads} x {self.kv_lora_rank}+{self.qk_rope_head_dim} latent"
        text = ", ".join(
            f"{kind.q_heads}/{kind.kv_heads} x {kind.head_dim}"
            + (f":{kind.v_head_dim}" if kind.v_head_dim != kind.head_dim else "")
            + (f" window {kind.window}" if kind.window else "")
            for kind in self.layers
        )
        return text + (f" cap {self.logit_cap:g}" if self.logit_cap else "")


class HasAttention(Protocol):
    """What attention problems are made of: a preset's Model, or what a config.json describes."""

    @property
    def name(self) -> str: ...
    @property
    def architecture(self) -> str: ...
    @property
    def attention(self) -> AttentionShape | None: ...

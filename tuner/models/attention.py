"""Describe a model's attention and its division over ranks."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.errors import BadProblem, IndivisibleShape
from tuner.problems.dtypes import Dtype


@dataclass(frozen=True)
class Layers:
    """A model's attention layers of one shape, before they are divided over ranks."""

    q_heads: int
    kv_heads: int
    head_dim: int  # columns of a query head and of a key head
    v_head_dim: int
    window: int = 0  # how many earlier tokens a query sees; 0: all
    sinks: bool = False
    count: int = 0  # how many layers have this shape; 0: unknown

    def works_with(self, tp: int) -> bool:
        """Say whether the engine can divide them: ranks share key heads out, or hold copies."""
        kv = self.kv_heads
        return not (self.q_heads % tp or (kv % tp if kv >= tp else tp % kv))


@dataclass(frozen=True)
class AttentionShape:
    """A model's attention as its checkpoint describes it.

    For latent (MLA) attention, `layers` has the form before absorption, with a key head for each
    query head. After absorption, one key of kv_lora_rank + qk_rope_head_dim columns serves all.
    """

    layers: tuple[Layers, ...]  # layers without a window first
    kv_lora_rank: int = 0  # 0: not latent
    qk_rope_head_dim: int = 0
    logit_cap: float = 0.0
    # The ranks for which the checkpoint's merged weights of queries, keys and values are laid out;
    # 0: for any number.
    laid_out_for: int = 0
    context_length: int = 0  # tokens, as the engine reads it; 0: unknown
    dtype: Dtype = Dtype.BFLOAT16  # of queries, keys and values; weights may have another
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


def sharing_ranks(name: str, tp: int, dp: int) -> int:
    """Return how many ranks share the attention of one of `dp` replicas.

    Raises IndivisibleShape, which names the nearest size that works, or BadProblem.
    """
    if dp < 1:
        raise BadProblem(f"data-parallel sizes start at 1, not dp={dp}")
    if dp == 1 or tp % dp == 0:
        return tp // dp
    near = min(
        (n for n in range(1, tp + 1) if tp % n == 0), key=lambda n: (abs(n - dp), n), default=1
    )
    raise IndivisibleShape(
        f"{name}: dp={dp} does not divide tp={tp}; the nearest that does is dp={near}"
    )


def check_division(name: str, shape: AttentionShape, tp: int) -> None:
    """Raise IndivisibleShape if tp does not divide the heads, and BadProblem if it is below 1."""
    if tp < 1:
        raise BadProblem(f"tensor-parallel sizes start at 1, not tp={tp}")
    if all(kind.works_with(tp) for kind in shape.layers):
        return
    bad = next(kind for kind in shape.layers if not kind.works_with(tp))
    sizes = [
        n for n in range(1, bad.q_heads + 1) if all(kind.works_with(n) for kind in shape.layers)
    ]
    # Experts and linear layers mostly divide by powers of two alone.
    even = [n for n in sizes if n & (n - 1) == 0]
    near = min(even, key=lambda n: (abs(n - tp), n))
    raise IndivisibleShape(
        f"{name}: tp={tp} does not divide {bad.q_heads} query heads with {bad.kv_heads} key heads; "
        f"the nearest that works is tp={near}"
    )

"""A model's attention, and how tensor parallelism divides it into problems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from tuner.devices.table import Device
from tuner.engines.sglang.attention.kv_splits import engine_kv_splits
from tuner.errors import BadProblem, IndivisibleShape
from tuner.families.attention.problem import Attention, Phase
from tuner.families.fused_moe.problem import Dtype


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


def attention_problems(
    model: HasAttention,
    tp: int = 1,
    *,
    dtype: Dtype | None = None,
    page_size: int = 1,
    kv_splits: int | None = None,
    engine_version: str | None = None,
    device: Device | None = None,
) -> list[Attention]:
    """What one of `tp` ranks that share the attention runs: extend, then decode.

    `tp` is --tp-size over --dp-size where the engine runs attention data-parallel. Without
    `kv_splits`, decode has those that the engine of that version chooses on that device; without
    either, those of its command line's default. Raises IndivisibleShape, which names the nearest
    tp that works, and BadProblem.
    """
    shape = known_attention(model)
    check_division(model.name, shape, tp)
    splits = kv_splits
    if splits is None:
        splits = engine_kv_splits(
            latent=bool(shape.kv_lora_rank),
            engine_version=engine_version,
            sm_count=device.sm_count if device else None,
            context_length=shape.context_length,
        )
    forms = _latent(shape, tp) if shape.kv_lora_rank else _plain(shape, tp)
    problems = [
        Attention(
            phase,
            q_heads=kind.q_heads,
            kv_heads=kind.kv_heads,
            Lq=kind.head_dim,
            Lv=kind.v_head_dim,
            dtype=dtype or shape.dtype,
            page_size=page_size,
            logit_cap=shape.logit_cap,
            sinks=kind.sinks,
            # Decode is given the indices of the window's tokens alone, so its kernel has none.
            **({"kv_splits": splits} if phase is Phase.DECODE else {"window": kind.window}),
        )
        for phase, kind in forms
    ]
    return list(dict.fromkeys(problems))


def known_attention(model: HasAttention) -> AttentionShape:
    """The model's attention, or BadProblem."""
    if model.attention is None:
        raise BadProblem(
            f"the attention of {model.name} ({model.architecture}) is not known: give the folder "
            "of its config.json, or the problem itself, extend_attention:q_heads=.."
        )
    return model.attention


def check_division(name: str, shape: AttentionShape, tp: int) -> None:
    """Raises IndivisibleShape or BadProblem."""
    if tp < 1:
        raise BadProblem(f"tensor-parallel sizes start at 1, not tp={tp}")
    if all(kind.works_with(tp) for kind in shape.layers):
        return
    bad = next(kind for kind in shape.layers if not kind.works_with(tp))
    sizes = [
        n for n in range(1, bad.q_heads + 1) if all(kind.works_with(n) for kind in shape.layers)
    ]
    near = min(sizes, key=lambda n: (abs(n - tp), n))
    raise IndivisibleShape(
        f"{name}: tp={tp} does not divide {bad.q_heads} query heads with {bad.kv_heads} key heads; "
        f"the nearest that works is tp={near}"
    )


def _plain(shape: AttentionShape, tp: int) -> Iterator[tuple[Phase, Layers]]:
    kinds = [_rank(kind, tp) for kind in shape.layers]
    return chain(_each(Phase.EXTEND, kinds), _each(Phase.DECODE, kinds))


def _latent(shape: AttentionShape, tp: int) -> Iterator[tuple[Phase, Layers]]:
    whole = _rank(shape.layers[0], tp)
    rank = shape.kv_lora_rank
    absorbed = Layers(whole.q_heads, 1, rank + shape.qk_rope_head_dim, rank)
    return chain(_each(Phase.EXTEND, [absorbed, whole]), _each(Phase.DECODE, [absorbed]))


def _each(phase: Phase, kinds: Sequence[Layers]) -> Iterator[tuple[Phase, Layers]]:
    return ((phase, kind) for kind in kinds)


def _rank(kind: Layers, tp: int) -> Layers:
    """One rank's heads: a key head that several ranks need is held by each of them."""
    return Layers(
        kind.q_heads // tp,
        max(1, kind.kv_heads // tp),
        kind.head_dim,
        kind.v_head_dim,
        kind.window,
        kind.sinks,
    )

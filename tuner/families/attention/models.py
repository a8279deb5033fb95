"""What the user names -> the attention problems to tune."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tuner.devices.table import Device
from tuner.errors import BadProblem, UnknownModel
from tuner.families.attention.problem import ENGINE_KV_SPLITS, Attention, Phase
from tuner.families.fused_moe.problem import Dtype, FusedMoe
from tuner.families.fused_moe.warning_line import parse_config_name
from tuner.models.attention import AttentionShape, HasAttention, attention_problems, known_attention
from tuner.models.attention_json import read_attention
from tuner.models.fields import is_path
from tuner.models.table import find_preset
from tuner.problems.text import FAMILIES, parse_attention

_SPARSE = (
    "sglang runs {} with its sparse attention where no --attention-backend is given; "
    "these problems are what the triton backend would run"
)
_NOTES = {
    "DeepseekV32ForCausalLM": _SPARSE,
    "GlmMoeDsaForCausalLM": _SPARSE,
    "Grok1ForCausalLM": "{} may scale logits by position as well (attn_temperature_len), "
    "which is not timed",
}
# The looked-at releases (of 0.5.2, 0.5.12, 0.5.16 and 0.5.23) whose server arguments refuse the
# triton attention backend for a class.
REFUSED = {
    "NemotronHForCausalLM": ("0.5.12", "0.5.16"),
    "Lfm2ForCausalLM": ("0.5.12", "0.5.16", "0.5.23"),
    "Lfm2MoeForCausalLM": ("0.5.23",),
}


@dataclass(frozen=True)
class ResolvedAttention:
    """Attention problems, and what was assumed on the way to them."""

    problems: tuple[Attention, ...]
    notes: tuple[str, ...] = ()  # sentences for the user


def resolve_attention(
    text: str,
    *,
    tp: int = 1,
    dtype: Dtype | None = None,
    engine_version: str | None = None,
    device: Device | None = None,
    page_size: int = 1,
    kv_splits: int | None = None,
) -> ResolvedAttention:
    """The problems that `text` names: a PROBLEM, a folder or file with a config.json, or a preset.

    A PROBLEM is one rank's already, so nothing else applies to it. Raises UnknownModel,
    MalformedCheckpoint, IndivisibleShape or BadProblem.
    """
    family = text.partition(":")[0]
    if family in FAMILIES and family != FusedMoe.family:
        return ResolvedAttention((parse_attention(text),))
    if family == FusedMoe.family or parse_config_name(text):
        raise BadProblem(f"{text[:200]!r} names a fused-MoE layer, which has no attention")
    return resolve_attention_model(
        find_attention(text),
        tp=tp,
        dtype=dtype,
        engine_version=engine_version,
        device=device,
        page_size=page_size,
        kv_splits=kv_splits,
    )


def resolve_attention_model(
    model: HasAttention,
    *,
    tp: int = 1,
    dtype: Dtype | None = None,
    engine_version: str | None = None,
    device: Device | None = None,
    page_size: int = 1,
    kv_splits: int | None = None,
) -> ResolvedAttention:
    """The problems of one rank of a model; see `resolve_attention`.

    Raises IndivisibleShape or BadProblem.
    """
    problems = attention_problems(
        model,
        tp,
        dtype=dtype,
        page_size=page_size,
        kv_splits=kv_splits,
        engine_version=engine_version,
        device=device,
    )
    notes = _notes(model, known_attention(model), tp)
    decode = next(p.kv_splits for p in problems if p.phase is Phase.DECODE)
    if kv_splits is None and decode != ENGINE_KV_SPLITS:
        notes.append(
            f"sglang {engine_version} raises decode's splits from {ENGINE_KV_SPLITS} to {decode} "
            "for latent attention on this GPU"
        )
    return ResolvedAttention(tuple(problems), tuple(notes))


def find_attention(text: str) -> HasAttention:
    """A preset, or what a folder or file with a config.json says; with or without experts.

    A preset wins over a folder of its bare name; ./NAME is the folder.
    Raises UnknownModel or MalformedCheckpoint.
    """
    if "/" in text and is_path(text):
        return read_attention(Path(text))
    try:
        return find_preset(text)
    except UnknownModel:
        if is_path(text):
            return read_attention(Path(text))
        raise


def _notes(model: HasAttention, shape: AttentionShape, tp: int) -> list[str]:
    notes = []
    first = shape.layers[0]
    if shape.kv_lora_rank:
        notes.append(
            f"sglang runs the absorbed form ({shape.kv_lora_rank + shape.qk_rope_head_dim} columns)"
            f" where anything is cached, and {first.head_dim}/{first.v_head_dim} where nothing is"
        )
    for kind in shape.layers:
        if kind.window:
            which = f"{kind.count} of its layers" if kind.count else "some layers"
            notes.append(
                f"{which} see {kind.window} tokens back alone; their decode gets no more either"
            )
        if not shape.kv_lora_rank and tp > kind.kv_heads:
            notes.append(
                f"each of {kind.kv_heads} key heads is held by {tp // kind.kv_heads} ranks"
            )
    if note := _NOTES.get(model.architecture):
        notes.append(note.format(model.architecture))
    if releases := REFUSED.get(model.architecture):
        notes.append(
            f"sglang {', '.join(releases)} cannot run {model.architecture} with its triton "
            "attention backend"
        )
    return notes

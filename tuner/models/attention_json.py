"""Read the attention of a config.json as sglang's model classes do (0.4.4 to 0.5.23)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tuner.errors import MalformedCheckpoint, MalformedField
from tuner.models.attention import AttentionShape, Layers
from tuner.models.fields import (
    MAX_SIZE,
    Json,
    architecture_of,
    count,
    language_fields,
    size,
    torch_dtype,
)
from tuner.models.layer_counts import count_layers, own_attention, place_layers
from tuner.problems.dtypes import Dtype

_Q_HEADS = ("num_attention_heads", "n_heads", "n_head")
_KV_HEADS = (
    *("num_key_value_heads", "kv_n_heads", "num_kv_heads", "n_head_kv"),
    *("multi_query_group_num", "num_attention_groups"),
)
_HIDDEN = ("hidden_size", "d_model")
_ROPE = ("qk_rope_head_dim",)  # 0: latent attention without rotary columns (bailing_moe_v3.py)
# In the order of sglang's get_context_length.
_CONTEXT = (
    *("max_sequence_length", "seq_length", "max_seq_len"),
    *("model_max_length", "max_position_embeddings"),
)

# Classes whose sliding layers have a window: the checkpoint's field, and the number that sglang
# subtracts from it, because its kernels do not count the query's own token. sglang reads no window
# for other classes (Mixtral, Qwen, Llama, and Llama 4, whose chunks the Triton backend ignores).
_GEMMA = ("Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
_GEMMA4 = (
    *("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
    "Gemma4UnifiedForConditionalGeneration",
)
_MIMO_V2 = ("MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM")
WINDOWED: dict[str, tuple[str, int]] = {
    **dict.fromkeys(("GptOssForCausalLM", *_GEMMA, *_GEMMA4), ("sliding_window", 1)),
    **dict.fromkeys(_MIMO_V2, ("sliding_window_size", 0)),
}
# If no list says which layers have a window: one layer in this many has none.
_FULL_EVERY = {"Gemma2ForCausalLM": 2, "Gemma3ForCausalLM": 6, "Gemma3ForConditionalGeneration": 6}
_GROK = ("Grok1ForCausalLM", "Grok1ModelForCausalLM")
# Classes with a cap, and the cap if config.json has none.
_CAPPED = {**dict.fromkeys(_GROK, 30.0), "Gemma2ForCausalLM": 0.0}
_MAX_CAP = 1000
_MAX_HEADS = 4096
_OWN_BACKEND = ("DeepseekV4", "Glm5Next", "HYV4")  # how the classes' names begin
# Columns of a head if config.json does not name them: the defaults of transformers' classes. Other
# classes divide hidden_size by the heads.
_HEAD_DIM = {
    **dict.fromkeys((*_GEMMA, *_GEMMA4, "Qwen3NextForCausalLM"), 256),
    **dict.fromkeys((f"Qwen3_5{x}ForConditionalGeneration" for x in ("", "Moe")), 256),
    **dict.fromkeys(("Qwen3ForCausalLM", "Qwen3VLForConditionalGeneration"), 128),
    **dict.fromkeys(("Llama4ForCausalLM", "Llama4ForConditionalGeneration"), 128),
    **dict.fromkeys(("Glm4ForCausalLM", "NemotronHForCausalLM"), 128),
    "GptOssForCausalLM": 64,
}


def attention_shape(config: Json) -> AttentionShape:
    """Return the attention of a config.json. Raises MalformedCheckpoint."""
    architecture = architecture_of(config)
    if architecture.startswith(_OWN_BACKEND):
        raise MalformedCheckpoint(f"sglang runs {architecture} with attention kernels of its own")
    fields = language_fields(config)
    latent = count(fields, ("kv_lora_rank",)) or 0
    kinds = [_latent(fields)] if latent else _kinds(fields, architecture)
    return AttentionShape(
        layers=tuple(kinds),
        kv_lora_rank=latent,
        qk_rope_head_dim=_required(fields, _ROPE, count) if latent else 0,
        logit_cap=_logit_cap(fields, architecture),
        laid_out_for=_laid_out_for(fields, architecture),
        context_length=_context_length(fields),
        dtype=_dtype(fields, architecture),
    )


def _dtype(fields: Json, architecture: str) -> Dtype:
    """Return the type that a server runs if no --dtype is given.

    Source: `_get_and_verify_dtype` of sglang's srt/configs/model_config.py. Servers of gpt-oss
    override it.
    """
    stored = torch_dtype(fields)
    if stored in (None, "float32") and not architecture.startswith(("Gemma", "GptOss")):
        return Dtype.FLOAT16
    return Dtype.FLOAT16 if stored == "float16" else Dtype.BFLOAT16


def _laid_out_for(fields: Json, architecture: str) -> int:
    """Return the number of ranks for which fused weights are laid out; 0 for any number.

    Source: `get_mimo_v2_fused_qkv_expected_tp_size` of sglang's srt/configs/model_config.py.
    """
    fused = fields.get("attention_projection_layout") == "fused_qkv"
    return _required(fields, _KV_HEADS) if fused and architecture == "MiMoV2ForCausalLM" else 0


def attention_places(
    fields: Json, architecture: str, shape: AttentionShape
) -> tuple[list[int], ...]:
    """Return the numbers of the layers that have each of `shape.layers`; none if unknown."""
    if shape.kv_lora_rank:
        return (place_layers(fields, 1)[0],)
    full, sliding = place_layers(fields, _FULL_EVERY.get(architecture, 1))
    return tuple(sliding if kind.window else full for kind in shape.layers)


def _latent(fields: Json) -> Layers:
    heads = _heads(fields)
    nope, value = _required(fields, ("qk_nope_head_dim",)), _required(fields, ("v_head_dim",))
    columns = nope + _required(fields, _ROPE, count)
    return Layers(heads, heads, columns, value, count=count_layers(fields, 1)[0])


def _kinds(fields: Json, architecture: str) -> list[Layers]:
    """Return the layers without a window, then the layers with a window, if the model has such
    layers.
    """
    full = _base(fields, architecture)
    seeing_all, sliding = count_layers(fields, _FULL_EVERY.get(architecture, 1))
    if architecture not in WINDOWED:
        if sliding:
            raise MalformedCheckpoint(
                f"how sglang runs the sliding layers of {architecture} is not known: "
                "name the problem itself, extend_attention:q_heads=.."
            )
        return [replace(full, count=seeing_all)]
    windowed = replace(full, window=_window(fields, architecture))
    if architecture == "GptOssForCausalLM":
        full, windowed = replace(full, sinks=True), replace(windowed, sinks=True)
    if architecture in _MIMO_V2:
        full = replace(full, sinks=bool(fields.get("add_full_attention_sink_bias")))
        windowed = _sliding_of_mimo(fields, windowed)
    if architecture in _GEMMA4:
        full = _full_of_gemma4(fields, full)
    kinds = [replace(full, count=seeing_all), replace(windowed, count=sliding)]
    # Without any count, the model may have layers of both kinds.
    return [kind for kind in kinds if kind.count or not (seeing_all or sliding)]


def _base(fields: Json, architecture: str) -> Layers:
    heads = _heads(fields)
    inner = fields.get("attn_config")  # DBRX
    nested = size(inner, _KV_HEADS) if isinstance(inner, Mapping) else None
    kv_heads = nested or size(fields, _KV_HEADS) or heads // _group(fields, heads)
    head_dim = size(fields, ("head_dim",)) or _HEAD_DIM.get(architecture)
    head_dim = head_dim or _divided(_required(fields, _HIDDEN), heads)
    # 0 is no size of its own, as null: ModelConfig of sglang's srt/configs/model_config.py.
    return Layers(heads, kv_heads, head_dim, count(fields, ("v_head_dim",)) or head_dim)


def _group(fields: Json, heads: int) -> int:
    """Return how many query heads share a key head, if layers say it (nemotron_nas.py); else 1."""
    name = "n_heads_in_group"
    listed = [one.get(name) for one in own_attention(fields).values()]
    group = size({name: listed or None}, (name,)) or 1
    if heads % group:
        raise MalformedCheckpoint(f"{name} {group} does not divide {heads} query heads")
    return group


def _heads(fields: Json) -> int:
    heads = _required(fields, _Q_HEADS)
    if heads > _MAX_HEADS:
        raise MalformedCheckpoint(f"{heads} query heads are more than the {_MAX_HEADS} read here")
    return heads


def _sliding_of_mimo(fields: Json, layers: Layers) -> Layers:
    return replace(
        layers,
        q_heads=size(fields, ("swa_num_attention_heads",)) or layers.q_heads,
        kv_heads=size(fields, ("swa_num_key_value_heads",)) or layers.kv_heads,
        head_dim=size(fields, ("swa_head_dim",)) or layers.head_dim,
        v_head_dim=size(fields, ("swa_v_head_dim", "swa_head_dim")) or layers.head_dim,
        sinks=bool(fields.get("add_swa_attention_sink_bias")),
    )


def _full_of_gemma4(fields: Json, layers: Layers) -> Layers:
    """Read Gemma 4's global fields; its plain fields describe the sliding layers."""
    head_dim = size(fields, ("global_head_dim",)) or layers.head_dim
    kv_heads = size(fields, ("num_global_key_value_heads",)) or layers.kv_heads
    return replace(layers, kv_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim)


def _window(fields: Json, architecture: str) -> int:
    name, less = WINDOWED[architecture]
    window = _required(fields, (name,)) - less
    if window < 1:
        raise MalformedCheckpoint(f"{name} should be more than {less}, not {window + less}")
    return window


def _logit_cap(fields: Json, architecture: str) -> float:
    if architecture not in _CAPPED:
        return 0.0
    cap = fields.get("attn_logit_softcapping")
    if cap is None:
        cap = _CAPPED[architecture]
    if isinstance(cap, bool) or not isinstance(cap, int | float) or not abs(cap) <= _MAX_CAP:
        raise MalformedField(f"attn_logit_softcapping should be a number, not {cap!r:.60}")
    method = fields.get("attn_logit_softcapping_method", "tanh")
    if method != "tanh":
        raise MalformedCheckpoint(f"attn_logit_softcapping_method {method!r:.60} is not known")
    return float(round(cap, 3)) if cap > 0 else 0.0


def _context_length(fields: Json) -> int:
    length = count(fields, _CONTEXT) or 0
    scaling = fields.get("rope_scaling") or fields.get("rope_parameters")
    if not isinstance(scaling, Mapping) or "original_max_position_embeddings" in scaling:
        return length
    factor = scaling.get("factor", 1)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < MAX_SIZE:
        return length
    return length if scaling.get("rope_type") == "llama3" else int(factor * length)


def _required(
    fields: Json,
    names: tuple[str, ...],
    read: Callable[[Json, tuple[str, ...]], int | None] = size,
) -> int:
    found = read(fields, names)
    if found is None:
        raise MalformedCheckpoint(f"its attention has no {names[0]}")
    return found


def _divided(hidden: int, heads: int) -> int:
    if hidden % heads:
        raise MalformedCheckpoint(
            f"it names no head_dim, and {heads} heads do not divide hidden_size {hidden}"
        )
    return hidden // heads

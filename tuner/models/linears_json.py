"""Read the linear layers of a config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.errors import MalformedCheckpoint
from tuner.models.attention import AttentionShape
from tuner.models.attention_json import attention_places, attention_shape
from tuner.models.expert_fields import has_experts, shared_experts
from tuner.models.fields import (
    Json,
    architecture_of,
    count,
    language_fields,
    size,
    torch_dtype,
)
from tuner.models.layer_counts import PATTERN, layer_total
from tuner.models.linear_parts import STYLES, LinearAttention, LinearSizes, linear_shape
from tuner.models.linears import LinearShape
from tuner.models.quantization import read_layer_quantization
from tuner.models.unquantised_layers import outside_groups, skipped_modules


def linears_of(config: Json) -> LinearShape:
    """Return the linear layers of a config.json. Raises MalformedCheckpoint."""
    architecture = architecture_of(config)
    style = STYLES.get(architecture)
    if style is None:
        raise MalformedCheckpoint(
            f"the linear layers of {architecture} are not known here: "
            "name the problem itself, block_gemm:N=.. or channel_gemm:N=.."
        )
    fields = language_fields(config)
    scheme = read_layer_quantization(fields, torch_dtype(fields))
    sizes = _sizes(config, fields, architecture)
    skips, outside = skipped_modules(fields), outside_groups(fields)
    return linear_shape(sizes, style, scheme, lambda name, at: skips(name, at) or outside(name, at))


def _sizes(config: Json, fields: Json, architecture: str) -> LinearSizes:
    attention = attention_shape(config)
    total = layer_total(fields)
    dense = _dense_places(fields, architecture, total)
    _, shared_width = shared_experts(fields, architecture)
    index_heads = size(fields, ("index_n_heads",)) or 0
    return LinearSizes(
        hidden=_required(fields, ("hidden_size",)),
        attention=attention,
        attention_at=attention_places(fields, architecture, attention),
        q_lora_rank=size(fields, ("q_lora_rank",)) or 0,
        index_heads=index_heads,
        index_head_dim=_required(fields, ("index_head_dim",)) if index_heads else 0,
        # dsa_indexer.py from 0.5.16 on: with an interleaved rope, wk is merged with weights_proj,
        # which is not quantised.
        index_wk_quantised=not fields.get("indexer_rope_interleave"),
        delta=delta_net(fields),
        delta_at=delta_places(fields, total, attention),
        intermediate=_required(fields, _DENSE) if dense else 0,
        dense_at=dense,
        shared_intermediate=shared_width,
        shared_at=[at for at in range(total) if at not in set(dense)],
    )


_DENSE = ("intermediate_size_mlp", "intermediate_size")  # Llama 4 has both


def _dense_places(fields: Json, architecture: str, total: int) -> Sequence[int]:
    if not has_experts(fields):
        return range(total)
    each = fields.get("moe_layer_freq")
    if isinstance(each, list):  # mimo_v2.py, is_moe_layer
        return [at for at in range(total) if at >= len(each) or not each[at]]
    first = count(fields, ("first_k_dense_replace",))
    if first is not None:  # deepseek_v2.py and glm4_moe.py, _is_layer_sparse
        every = size(fields, ("moe_layer_freq",)) or 1
        return [at for at in range(total) if at < first or at % every]
    if architecture.startswith("Llama4"):  # llama4.py, _is_moe_layer
        step = count(fields, ("interleave_moe_layer_step",))
        step = 1 if step is None else step
        return [at for at in range(total) if step == 0 or (at + 1) % step]
    return _dense_by_field(fields, total)


def _dense_by_field(fields: Json, total: int) -> Sequence[int]:
    """Return the layers without experts, by fields that few classes have; none without such a
    field.
    """
    if period := size(fields, ("expert_layer_period",)):  # Jamba (transformers' configuration)
        offset = count(fields, ("expert_layer_offset",)) or 0
        return [at for at in range(total) if at % period != offset]
    if (first := count(fields, ("num_dense_layers",))) is not None:  # lfm2_moe.py
        return range(min(first, total))
    if (begin := count(fields, ("moe_layer_start_index",))) is not None:  # ernie45_moe.py
        end = fields.get("moe_layer_end_index")
        end = end if isinstance(end, int) and end >= 0 else total - 1
        every = size(fields, ("moe_layer_interval",)) or 1
        return [at for at in range(total) if not begin <= at <= end or (at + 1) % every]
    listed = fields.get("moe_layers_enum")  # step3_text.py: "4,5,6"
    if isinstance(listed, str):
        listed = listed.split(",")
    if isinstance(listed, list):
        sparse = {str(at).strip() for at in listed}
        return [at for at in range(total) if str(at) not in sparse]
    return ()  # other classes make every layer sparse


def sparse_places(fields: Json, architecture: str) -> list[int]:
    """Return the layers whose MLP has experts. Raises MalformedCheckpoint."""
    pattern = fields.get(PATTERN)
    if isinstance(pattern, str):
        return [at for at, kind in enumerate(pattern) if kind == "E"]
    kinds = fields.get("layers_block_type")
    if isinstance(kinds, list) and "moe" in kinds:
        return [at for at, kind in enumerate(kinds) if kind == "moe"]
    total = layer_total(fields)
    dense = set(_dense_places(fields, architecture, total))
    return [at for at in range(total) if at not in dense]


def delta_net(fields: Json) -> LinearAttention | None:
    """Return the heads of gated delta nets; None without such layers. Raises
    MalformedCheckpoint.
    """
    heads = size(fields, ("linear_num_key_heads",))
    if heads is None:
        return None
    return LinearAttention(
        key_heads=heads,
        value_heads=_required(fields, ("linear_num_value_heads",)),
        key_dim=_required(fields, ("linear_key_head_dim",)),
        value_dim=_required(fields, ("linear_value_head_dim",)),
    )


def delta_places(fields: Json, total: int, attention: AttentionShape) -> Sequence[int]:
    """Return the layers that are gated delta nets."""
    types = fields.get("layer_types")
    if isinstance(types, list):
        return [at for at, kind in enumerate(types) if kind == "linear_attention"]
    interval = size(fields, ("full_attention_interval",))
    return [at for at in range(total) if (at + 1) % interval] if interval else ()


def _required(fields: Mapping[str, object], names: tuple[str, ...]) -> int:
    found = size(fields, names)
    if found is None:
        raise MalformedCheckpoint(f"its linear layers have no {names[-1]}")
    return found

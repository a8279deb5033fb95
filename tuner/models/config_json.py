"""A model's config.json -> Model."""

from __future__ import annotations

from pathlib import Path

from tuner.errors import MalformedCheckpoint
from tuner.models.attention_json import attention_or_none
from tuner.models.fields import (
    Json,
    architecture_of,
    language_fields,
    parse,
    read_with,
    size,
    torch_dtype,
)
from tuner.models.model import Model
from tuner.models.quantization import read_quantization

# Families of models name their sizes differently. The first name that is present counts: where a
# model has two of them, the earlier one is for routed experts and the later one for dense layers.
_FIELDS = {
    "E": ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"),
    "intermediate": (
        *("moe_intermediate_size", "expert_hidden_dim", "intermediate_size", "ffn_hidden_size"),
    ),
    "hidden": ("moe_latent_size", "routed_expert_hidden_size", "hidden_size", "d_model"),
    "top_k": (
        *("num_experts_per_tok", "num_experts_per_token", "experts_per_token"),
        *("moe_topk", "moe_top_k", "moe_k", "top_k_experts"),
    ),
}
_SHARED = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
_SHARED_WIDTH = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
)
_SHARED_BY_DESIGN = {"Llama4ForConditionalGeneration": 1, "Llama4ForCausalLM": 1}


def read_checkpoint(path: Path) -> Model:
    """Read the config.json at `path`, or in the folder `path`.

    Raises MalformedCheckpoint where it does not describe a mixture-of-experts model.
    """
    return read_with(path, parse_checkpoint)


def parse_checkpoint(data: bytes, name: str) -> Model:
    """The model of a config.json's bytes. Raises MalformedCheckpoint."""
    config = parse(data)
    fields = language_fields(config)
    architecture = architecture_of(config)
    intermediate = _required(fields, "intermediate", architecture)
    shared = size(fields, _SHARED)
    width = size(fields, _SHARED_WIDTH)
    if shared is None:
        shared = 1 if width else _SHARED_BY_DESIGN.get(architecture, 0)
    quant = read_quantization(fields, torch_dtype(fields))
    return Model(
        name=name,
        architecture=architecture,
        E=_required(fields, "E", architecture),
        intermediate=intermediate,
        hidden=_required(fields, "hidden", architecture),
        top_k=_required(fields, "top_k", architecture),
        n_shared_experts=shared,
        shared_intermediate=width or shared * intermediate,
        quantization=quant.kind,
        dtype=quant.dtype,
        block_shape=quant.block_shape,
        per_channel_quant=quant.per_channel_quant,
        attention=attention_or_none(config),
    )


def _required(fields: Json, field: str, architecture: str) -> int:
    found = size(fields, _FIELDS[field])
    if not found:
        what = "experts" if field == "E" else field
        raise MalformedCheckpoint(
            f"{architecture} has no {what} (none of {', '.join(_FIELDS[field])}): "
            "not a mixture-of-experts model"
        )
    return found

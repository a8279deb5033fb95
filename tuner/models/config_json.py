"""A model's config.json -> Model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tuner.errors import MalformedCheckpoint
from tuner.models.attention_json import attention_shape
from tuner.models.expert_fields import EXPERTS, HIDDEN, INTERMEDIATE, TOP_K, shared_experts
from tuner.models.fields import (
    Json,
    architecture_of,
    language_fields,
    parse,
    size,
    torch_dtype,
)
from tuner.models.folder import config_file, doubt_of_folder, doubt_of_name, read_with
from tuner.models.linears_json import read_shape, sparse_places
from tuner.models.model import Model
from tuner.models.quantization import read_quantization, unquantised
from tuner.models.skipped import otherwise_quantised, unquantised_experts

T = TypeVar("T")
_FIELDS = {"E": EXPERTS, "intermediate": INTERMEDIATE, "hidden": HIDDEN, "top_k": TOP_K}


def read_checkpoint(path: Path) -> Model:
    """Read the config.json at `path`, or in the folder `path`, and what lies beside it.

    Raises MalformedCheckpoint where it does not describe a mixture-of-experts model.
    """
    model = read_with(path, parse_checkpoint)
    file = config_file(path)
    if model.quantization != "none" or file.name != "config.json":
        return model
    return replace(model, doubt=doubt_of_folder(file.parent) or model.doubt)


def parse_checkpoint(data: bytes, name: str) -> Model:
    """The model of a config.json's bytes. Raises MalformedCheckpoint."""
    config = parse(data)
    architecture = architecture_of(config)
    fields, for_images = _text_experts(language_fields(config), architecture)
    shared, width = shared_experts(fields, architecture)
    quant = read_quantization(fields, torch_dtype(fields))
    doubt = ""
    if quant.kind == "none":
        doubt = doubt_of_name(name)
    else:
        sparse = sparse_places(fields, architecture)
        left = unquantised_experts(fields, architecture, sparse)
        if left and len(left) == len(sparse):
            quant = replace(unquantised(torch_dtype(fields)), kind="none, though layers are")
        elif left:
            doubt = f"the experts of {len(left)} of {len(sparse)} layers are not quantised"
        elif other := otherwise_quantised(fields, architecture, sparse):
            doubt = f"the experts of {len(other)} of {len(sparse)} layers have other bits"
    return Model(
        name=name,
        architecture=architecture,
        E=_required(fields, "E", architecture),
        intermediate=_required(fields, "intermediate", architecture),
        hidden=_required(fields, "hidden", architecture),
        top_k=_required(fields, "top_k", architecture),
        n_shared_experts=shared,
        shared_intermediate=width,
        quantization=quant.kind,
        dtype=quant.dtype,
        block_shape=quant.block_shape,
        per_channel_quant=quant.per_channel_quant,
        image_intermediate=for_images,
        detail=quant.detail,
        doubt=doubt,
        attention=_or_none(attention_shape, config),
        linears=_or_none(read_shape, config),
    )


def _text_experts(fields: Json, architecture: str) -> tuple[Json, int]:
    """The fields of the experts for text, and the columns of those for images; 0: none.

    ERNIE 4.5 VL has two of each: vLLM's ernie45_vl_moe.py and sglang's ernie45_moe_vl.py.
    """
    if architecture != "Ernie4_5_VLMoeForConditionalGeneration":
        return fields, 0
    of_both = ("moe_num_experts", "moe_intermediate_size")
    pairs = {name: pair for name in of_both if isinstance(pair := fields.get(name), list)}
    if any(len(pair) != 2 for pair in pairs.values()):
        raise MalformedCheckpoint(f"{architecture} has experts for text and for images, so 2 sizes")
    first, second = (
        {**fields, **{name: pair[at] for name, pair in pairs.items()}} for at in (0, 1)
    )
    return first, size(second, INTERMEDIATE) or 0 if pairs else 0


def _required(fields: Json, field: str, architecture: str) -> int:
    found = size(fields, _FIELDS[field])
    if not found:
        what = "experts" if field == "E" else field
        raise MalformedCheckpoint(
            f"{architecture} has no {what} (none of {', '.join(_FIELDS[field])}): "
            "not a mixture-of-experts model"
        )
    return found


def _or_none(read: Callable[[Json], T], config: Json) -> T | None:
    """What is read of a config.json; None if it cannot be read."""
    try:
        return read(config)
    except MalformedCheckpoint:
        return None

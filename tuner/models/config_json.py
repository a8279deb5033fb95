"""Read a model's config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.errors import LacksLayers, MalformedCheckpoint, MalformedField
from tuner.models.attention_json import attention_shape
from tuner.models.delta_json import delta_shape
from tuner.models.expert_fields import (
    EXPERTS,
    EXPERTS_WIDTH,
    HIDDEN,
    INTERMEDIATE,
    TOP_K,
    has_experts,
    shared_experts,
)
from tuner.models.fields import (
    Json,
    architecture_of,
    count,
    language_fields,
    parse,
    size,
    torch_dtype,
)
from tuner.models.folder import config_file, doubt_of_folder, doubt_of_name, read_with
from tuner.models.linears_json import linears_of, sparse_places
from tuner.models.mamba_json import mamba_shape
from tuner.models.model import Model
from tuner.models.quantization import read_quantization, unquantised
from tuner.models.unquantised_layers import otherwise_quantised, unquantised_experts

_FIELDS = {"E": EXPERTS, "intermediate": INTERMEDIATE, "hidden": HIDDEN, "top_k": TOP_K}
# Classes whose experts never have the width of dense layers.
_OWN_WIDTH = ("Deepseek", "Glm4Moe", "Qwen2Moe", "Qwen3")


def read_model(path: Path) -> Model:
    """Read the config.json at `path`, or in the folder `path`, and the files beside it.

    A part that cannot be read, such as the attention of an unknown class, is in `Model.unread`.
    Raises MalformedCheckpoint for a file that is no config.json of a model.
    """
    model, file = read_with(path, parse_model), config_file(path)
    unread = {part: type(error)(f"{file}: {error}") for part, error in model.unread.items()}
    model = replace(model, unread=unread)
    if model.quantization != "none" or file.name != "config.json":
        return model
    return replace(model, doubt=doubt_of_folder(file.parent) or model.doubt)


def parse_model(data: bytes, name: str) -> Model:
    """Read the model of a config.json's bytes; see `read_model`."""
    config = parse(data)
    readers: Mapping[str, Callable[[], Any]] = {
        "experts": lambda: _experts(config, name),
        "attention": lambda: attention_shape(config),
        "linears": lambda: linears_of(config),
        "mamba": lambda: mamba_shape(config, name),
        "delta": lambda: delta_shape(config, name),
    }
    parts: dict[str, Any] = {}
    unread: dict[str, MalformedCheckpoint] = {}
    architecture = architecture_of(config)
    for part, read in readers.items():
        try:
            parts[part] = read()
        except MalformedField:  # of a broken file nothing is believed
            raise
        except MalformedCheckpoint as error:
            unread[part] = error.with_traceback(None)
    experts = parts.pop("experts", {})
    return Model(name=name, architecture=architecture, **experts, **parts, unread=unread)


def _experts(config: Json, name: str) -> dict[str, Any]:
    """Return the fields of a Model that describe its experts.

    Raises LacksLayers for a model without experts, and MalformedCheckpoint.
    """
    architecture = architecture_of(config)
    fields, for_images = _text_experts(language_fields(config), architecture)
    _require_count(fields, architecture)
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
    return {
        **{field: _required(fields, field, architecture) for field in _FIELDS},
        "n_shared_experts": shared,
        "shared_intermediate": width,
        "quantization": quant.kind,
        "dtype": quant.dtype,
        "block_shape": quant.block_shape,
        "per_channel_quant": quant.per_channel_quant,
        "image_intermediate": for_images,
        "detail": quant.detail,
        "doubt": doubt,
    }


def _text_experts(fields: Json, architecture: str) -> tuple[Json, int]:
    """Return the fields of the experts for text, and the columns of the experts for images or 0.

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


def _require_count(fields: Json, architecture: str) -> None:
    """Raise LacksLayers if the model has no experts, MalformedCheckpoint if that is not known."""
    if has_experts(fields):
        return
    experts = count(fields, EXPERTS)
    none_of = f"none of {', '.join(EXPERTS)}{'' if experts is None else ' is more than 1'}"
    if experts is None and ("moe" in architecture.lower() or count(fields, TOP_K)):
        raise MalformedCheckpoint(f"it does not say how many experts there are ({none_of})")
    raise LacksLayers(f"{architecture} has no experts ({none_of}): not a mixture-of-experts model")


def _required(fields: Json, field: str, architecture: str) -> int:
    names = _FIELDS[field]
    if field == "intermediate" and architecture.startswith(_OWN_WIDTH):
        names = EXPERTS_WIDTH
    found = size(fields, names)
    if found is None:
        raise MalformedCheckpoint(
            f"it names no {field} of its experts (none of {', '.join(names)})"
        )
    return found

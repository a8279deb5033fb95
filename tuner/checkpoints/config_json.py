"""A model's config.json -> Model.

Only JSON is parsed: no model code is loaded, and nothing is fetched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from tuner.checkpoints.model import Model
from tuner.checkpoints.quantization import read_quantization
from tuner.errors import MalformedCheckpoint

MAX_BYTES = 16 << 20  # real ones with a list of layers to skip reach 3 MiB
MAX_SIZE = 1 << 24  # of any count of experts or columns

# Every family names its sizes in its own words; the first of these that is there counts. Families
# with both names use the first for the routed experts and the second for dense layers.
_FIELDS = {
    "E": ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"),
    "intermediate": (
        "moe_intermediate_size",
        "expert_hidden_dim",
        "intermediate_size",
        "ffn_hidden_size",
    ),
    "hidden": ("moe_latent_size", "routed_expert_hidden_size", "hidden_size", "d_model"),
    "top_k": (
        "num_experts_per_tok",
        "num_experts_per_token",
        "experts_per_token",
        "moe_topk",
        "moe_top_k",
        "moe_k",
        "top_k_experts",
    ),
}
_SHARED = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
_SHARED_WIDTH = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
)
_NESTED = ("text_config", "language_config", "llm_config", "thinker_config", "ffn_config")
_SHARED_BY_DESIGN = {"Llama4ForConditionalGeneration": 1, "Llama4ForCausalLM": 1}


def read_checkpoint(path: Path) -> Model:
    """Read the config.json at `path`, or in the folder `path`.

    Raises MalformedCheckpoint for what cannot be read as a mixture-of-experts model.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise MalformedCheckpoint(f"cannot read {file}: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise MalformedCheckpoint(f"{file} is larger than {MAX_BYTES >> 20} MiB: not a config.json")
    name = file.parent.resolve().name if file.name == "config.json" else file.stem
    try:
        return parse_checkpoint(data, name or "model")
    except MalformedCheckpoint as error:
        raise MalformedCheckpoint(f"{file}: {error}") from None


def parse_checkpoint(data: bytes, name: str) -> Model:
    """The model of a config.json's bytes. Raises MalformedCheckpoint."""
    try:
        config = json.loads(data, parse_constant=_refuse_constant)
    except RecursionError:
        raise MalformedCheckpoint("its JSON is nested too deeply") from None
    except ValueError as error:
        raise MalformedCheckpoint(f"not JSON ({error})") from None
    if not isinstance(config, Mapping):
        raise MalformedCheckpoint("not a JSON object")
    return _model(config, name)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def _model(config: Mapping[str, Any], name: str) -> Model:
    layers = _flatten(config)
    architecture = _architecture(config)
    intermediate = _required(layers, "intermediate", architecture)
    shared = _size(layers, _SHARED)
    width = _size(layers, _SHARED_WIDTH)
    if shared is None:
        shared = 1 if width else _SHARED_BY_DESIGN.get(architecture, 0)
    torch_dtype = layers.get("torch_dtype") or layers.get("dtype")
    quant = read_quantization(layers, torch_dtype if isinstance(torch_dtype, str) else None)
    return Model(
        name=name,
        architecture=architecture,
        E=_required(layers, "E", architecture),
        intermediate=intermediate,
        hidden=_required(layers, "hidden", architecture),
        top_k=_required(layers, "top_k", architecture),
        n_shared_experts=shared,
        shared_intermediate=width or shared * intermediate,
        quantization=quant.kind,
        dtype=quant.dtype,
        block_shape=quant.block_shape,
        per_channel_quant=quant.per_channel_quant,
    )


def _flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's fields: those of a nested config win over the outer ones."""
    flat = dict(config)
    for name in _NESTED:
        inner = flat.get(name)
        if isinstance(inner, Mapping):
            flat |= {key: value for key, value in inner.items() if value is not None}
    return flat


def _architecture(config: Mapping[str, Any]) -> str:
    match config.get("architectures"):
        case [str() as architecture, *_]:
            return architecture[:200]
    raise MalformedCheckpoint('no architecture is named: "architectures" should be a list of one')


def _required(layers: Mapping[str, Any], field: str, architecture: str) -> int:
    size = _size(layers, _FIELDS[field])
    if not size:
        what = "experts" if field == "E" else field
        raise MalformedCheckpoint(
            f"{architecture} has no {what} (none of {', '.join(_FIELDS[field])}): "
            "not a mixture-of-experts model"
        )
    return size


def _size(layers: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = layers.get(name)
        # One number a layer, which some families write, is one number when all are equal.
        if isinstance(value, list) and value and all(v == value[0] for v in value):
            value = value[0]
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_SIZE:
            raise MalformedCheckpoint(f"{name} should be a whole number, not {value!r:.60}")
        return value
    return None

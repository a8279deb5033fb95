"""Read a checkpoint's folder: its config.json, its name, and the files beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from tuner.errors import MalformedCheckpoint
from tuner.files import read_limited
from tuner.models.fields import MAX_BYTES, language_fields, parse
from tuner.models.quantization import is_mixed, quantization_fields

T = TypeVar("T")

# ModelOpt's file, which both engines read: vLLM's get_config in transformers_utils/config.py,
# sglang's _parse_quant_hf_config in srt/configs/model_config.py.
MODELOPT = "hf_quant_config.json"
_IN_NAME = re.compile(
    r"(?<![a-z])(nvfp4|mxfp4|mxfp8|fp8|fp4|int8|int4|w\d+a\d+|awq|gptq|gguf|bnb|[48]-?bit)(?![a-z0-9])",
    re.IGNORECASE,
)


def read_with(path: Path, parse_config: Callable[[bytes, str], T]) -> T:
    """Call `parse_config` with the bytes of a config.json and the model's name.

    The config.json is the file at `path`, or in the folder `path`; see `with_modelopt`. Raises
    MalformedCheckpoint, or LacksLayers of `parse_config`, which names the file.
    """
    file = config_file(path)
    data = read_limited(file, MAX_BYTES, "config.json", MalformedCheckpoint)
    try:
        if file.name == "config.json":
            data = with_modelopt(data, file.parent)
        elif file.name == MODELOPT:
            raise MalformedCheckpoint(
                "it says how weights are quantised, and not the sizes of a model: give the folder, "
                "or the config.json that lies beside it, and both are read"
            )
        return parse_config(data, _name_of(file))
    except MalformedCheckpoint as error:
        raise type(error)(f"{file}: {error}") from None


def config_file(path: Path) -> Path:
    """Return the file at `path`, or the config.json in the folder `path`."""
    return path / "config.json" if path.is_dir() else path


def _name_of(file: Path) -> str:
    """Return a model's name, from its folder; huggingface_hub's cache has it two folders above."""
    if file.name != "config.json":
        return file.stem or "model"
    folder = file.absolute().parent
    cached = folder.parent.parent.name
    if folder.parent.name == "snapshots" and cached.startswith("models--"):
        return cached.rpartition("--")[2]
    return folder.resolve().name or "model"


def with_modelopt(data: bytes, folder: Path) -> bytes:
    """Add the fields of the folder's hf_quant_config.json to a config.json's bytes.

    They are added if config.json has no quantization_config, or if its quantization_config lacks
    the list of layers of a mixed precision. Raises MalformedCheckpoint.
    """
    file = folder / MODELOPT
    if not file.exists():
        return data
    config = parse(data)
    quant = dict(quantization_fields(language_fields(config)))
    if quant and (not is_mixed(quant) or "quantized_layers" in quant):
        return data
    try:
        beside = parse(read_limited(file, MAX_BYTES, MODELOPT, MalformedCheckpoint))
    except MalformedCheckpoint as error:
        raise MalformedCheckpoint(f"{file.name} beside it: {error}") from None
    added = beside.get("quantization", beside)
    if not isinstance(added, Mapping):
        raise MalformedCheckpoint(f"{file.name} beside it has no object named quantization")
    quant = {"quant_method": "modelopt", **added, **quant}
    return json.dumps({**config, "quantization_config": quant}).encode()


def doubt_of_name(name: str) -> str:
    """Return a clause if a model's name speaks of quantisation that its config.json lacks."""
    found = _IN_NAME.search(name)
    return f"the name says {found[0]} and config.json has no quantization_config" if found else ""


def doubt_of_folder(folder: Path) -> str:
    """Return a clause if files beside a config.json speak of quantisation that it lacks."""
    names = sorted(
        path.name
        for path in folder.iterdir()
        if path.suffix in (".json", ".yaml", ".yml")
        and ("quant" in path.name.lower() or path.name == "recipe.yaml")
    )
    if not names:
        return ""
    return f"beside config.json lies {names[0]}, and config.json has no quantization_config"

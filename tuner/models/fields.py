"""Parse a model's config.json, and read its fields with their types checked.

Only JSON is parsed: no model code is loaded, and nothing is fetched. Functions raise
MalformedCheckpoint for a file that cannot be read.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from tuner.errors import MalformedCheckpoint, MalformedField

Json = Mapping[str, Any]

MAX_BYTES = 16 << 20  # real files, with a list of layers to skip, reach 3 MiB
MAX_SIZE = 1 << 24  # the largest count of experts, columns or positions
_NESTED = ("text_config", "language_config", "llm_config", "thinker_config", "ffn_config")


def is_path(text: str) -> bool:
    """Say whether there is a file or folder of that name."""
    try:
        return bool(text) and Path(text).exists()
    except (OSError, ValueError):  # the name is too long, or holds a NUL
        return False


def parse(data: bytes) -> Json:
    """Return the JSON object in a config.json's bytes. Raises MalformedCheckpoint."""
    if b"&quot;" in data:  # copied from a page's source
        data = html.unescape(data.decode("utf-8", errors="replace")).encode()
    try:
        config = json.loads(data, parse_constant=_constant)
    except RecursionError:
        raise MalformedCheckpoint("its JSON is nested too deeply") from None
    except ValueError as error:
        raise MalformedCheckpoint(f"not JSON ({error})") from None
    if not isinstance(config, Mapping):
        raise MalformedCheckpoint("not a JSON object")
    return config


def _constant(text: str) -> float:
    """Read infinity, which some models have as a limit of time steps; no size may be infinite."""
    if text == "NaN":
        raise ValueError("NaN is not a number")
    return float(text)


def language_fields(config: Json, depth: int = 3) -> dict[str, Any]:
    """Return the language model's fields. Fields of a nested config override outer fields.

    Configs are nested in each other in any order, as Qwen3-Omni's thinker_config.text_config.
    """
    flat = dict(config)
    for name in _NESTED:
        inner = config.get(name)
        if isinstance(inner, Mapping) and depth:
            fields = language_fields(inner, depth - 1)
            flat |= {key: value for key, value in fields.items() if value is not None}
    return flat


def architecture_of(config: Json) -> str:
    """Return the model's class. Raises MalformedCheckpoint if none is named."""
    match config.get("architectures"):
        case [str() as architecture, *_] if architecture.isidentifier():  # a class of Python's
            return architecture[:200]
    raise MalformedCheckpoint(
        'no architecture is named: "architectures" should be a list with one name'
    )


def torch_dtype(fields: Json) -> str | None:
    """Return the torch dtype of unquantised weights."""
    dtype = fields.get("torch_dtype") or fields.get("dtype")
    return dtype if isinstance(dtype, str) else None


def size(fields: Json, names: tuple[str, ...]) -> int | None:
    """Return the value of the first of these fields that is present and not null.

    Raises as `count` does, and MalformedCheckpoint for 0: it is no other word for null, and no
    engine makes a layer of it.
    """
    name, value = _first(fields, names)
    if value == 0:
        raise MalformedCheckpoint(f"{name} should be at least 1, not 0")
    return value


def count(fields: Json, names: tuple[str, ...]) -> int | None:
    """Return the value of the first of these fields that is present and not null; 0 means none.

    Raises MalformedField for a value that is no whole number, and MalformedCheckpoint for numbers
    that differ between layers.
    """
    return _first(fields, names)[1]


def _first(fields: Json, names: tuple[str, ...]) -> tuple[str, int | None]:
    for name in names:
        value = fields.get(name)
        # Some models write a number for each layer; equal numbers count as one.
        if isinstance(value, list) and value and all(v == value[0] for v in value):
            value = value[0]
        if value is None:
            continue
        if isinstance(value, list) and value and all(map(_is_size, value)):  # which is not wrong
            raise MalformedCheckpoint(f"{name} differs between layers, which is not read here")
        if not _is_size(value):
            error = MalformedCheckpoint if isinstance(value, list) else MalformedField
            raise error(f"{name} should be a whole number, not {value!r:.60}")
        return name, value
    return "", None


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_SIZE

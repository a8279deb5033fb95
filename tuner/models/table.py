"""The table of well-known models (models.toml)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from tuner.errors import MalformedCheckpoint, UnknownModel
from tuner.files import shipped_toml
from tuner.models.attention import AttentionShape, Layers
from tuner.models.config_json import parse_checkpoint
from tuner.models.delta_json import DeltaShape
from tuner.models.fields import architecture_of, is_path, parse
from tuner.models.folder import read_with
from tuner.models.linear_parts import STYLES, LinearAttention, LinearSizes, linear_shape
from tuner.models.linears import LinearShape
from tuner.models.mamba_json import MambaShape
from tuner.models.model import Model
from tuner.models.quantization import Quantization, unquantised
from tuner.problems.dtypes import Dtype
from tuner.shell import command_line

T = TypeVar("T")
_REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)
_PATHS = ("/", "./", "../", "~")
_CONFIG_IN_API = "; post its config.json; GET /v1/models lists the presets"
_CONFIG_ON_PAGES = ": the page Models lists the known ones, and the API takes a config.json"


@cache
def presets() -> tuple[Model, ...]:
    """Every model of the table, in its order."""
    return tuple(_model(row) for row in shipped_toml("tuner.models", "models.toml")["model"])


def preset_or_file(text: str, read: Callable[[Path], T]) -> Model | T:
    """The preset of that name, or the result of `read` for a folder or file of that name.

    Where both exist, the preset is taken; ./NAME is the folder. Raises UnknownModel, and any
    error of `read`.
    """
    if "/" in text and is_path(text):
        return read(Path(text))
    try:
        return find_preset(text)
    except UnknownModel:
        if is_path(text):
            return read(Path(text))
        raise


def class_of(target: str | bytes) -> str:
    """The class of a preset, or of the config.json in a folder, a file or bytes; "" if it is none
    of these, or names no class.
    """
    try:
        if isinstance(target, bytes):
            return architecture_of(parse(target))
        found = preset_or_file(
            target, lambda path: read_with(path, lambda data, _: architecture_of(parse(data)))
        )
    except (UnknownModel, MalformedCheckpoint):
        return ""
    return found if isinstance(found, str) else found.architecture


def stored_as(target: str | bytes) -> str:
    """How experts of a preset or a config.json are stored: type, format, and what is special.

    As "int4_w4a16 compressed-tensors int4 asymmetric", or "bfloat16 none"; "" if it is not known.
    """
    try:
        model = (
            parse_checkpoint(target, "model")
            if isinstance(target, bytes)
            else preset_or_file(target, lambda path: read_with(path, parse_checkpoint))
        )
    except (UnknownModel, MalformedCheckpoint):
        return ""
    plain = model.quantization.startswith("none")
    if model.dtype is None or (plain and model.doubt):
        return ""
    return f"{model.dtype.value} {model.quantization} {model.detail}".rstrip()


def find_preset(text: str) -> Model:
    """The preset of that name or alias. Raises UnknownModel, which names a near one.

    Case, spaces, underscores, hyphens and an organisation before a slash do not matter. A path is
    no name: where nothing is there, a preset of its last part could be another model.
    """
    if text.startswith(_PATHS):
        raise UnknownModel(
            f"no preset is called {text[:200]!r}",
            cli=", and nothing is there: give the path of a config.json",
            api=_CONFIG_IN_API,
            page=_CONFIG_ON_PAGES,
        )
    if model := _by_key().get(_key(text)):
        return model
    near = _near(text)
    repository = text if _REPOSITORY.fullmatch(text) else "NAME"
    fetch = command_line("hf", "download", repository, "config.json")
    raise UnknownModel(
        f"no preset is called {text[:200]!r}{near}",
        cli="" if near else f"; give its config.json (`{fetch}`), or see `tuner models`",
        api="" if near else _CONFIG_IN_API,
        page="" if near else _CONFIG_ON_PAGES,
    )


def sibling(model: Model, dtype: Dtype) -> Model | None:
    """The preset of the same sizes whose checkpoint is quantised as this dtype; None: no such."""
    return next(
        (
            one
            for one in presets()
            if one.dtype is dtype
            and one.name != model.name
            and (one.block_shape or one.per_channel_quant)
            and (one.architecture, one.E, one.intermediate, one.hidden)
            == (model.architecture, model.E, model.intermediate, model.hidden)
            and one.name.startswith(model.name)
        ),
        None,
    )


def named_in(text: str) -> list[Model]:
    """The presets of a checkpoint's name or path, which may have more words behind theirs.

    Of glm-4.5 and glm-4.5-fp8 the longer one alone.
    """
    last = _key(text.rstrip("/").rpartition("/")[2])
    found = {key: model for key, model in _by_key().items() if last and last.startswith(key)}
    most = len(max(found, key=len, default=""))
    return [model for key, model in found.items() if len(key) == most]


def _near(text: str) -> str:
    """The nearest preset where only letters differ, or hardly anything: another number is another
    model.
    """
    names = [name for model in presets() for name in (model.name, *model.aliases)]
    (near, *_) = get_close_matches(text.casefold(), names, n=1, cutoff=0.75) or [""]
    numbers = re.findall(r"[0-9]+", text)
    close = re.findall(r"[0-9]+", near) == numbers or get_close_matches(text, [near], cutoff=0.95)
    if near and close:
        return f"; did you mean {near!r}?"
    # A preset with more words behind it, such as a dtype in which nobody has the model.
    begins = [name for name in names if text.casefold().startswith(f"{name}-")]
    return f"; did you mean {max(begins, key=len)!r}?" if begins else ""


@cache
def _by_key() -> dict[str, Model]:
    return {_key(name): model for model in presets() for name in (model.name, *model.aliases)}


def _key(text: str) -> str:
    return re.sub(r"[\s_-]+", "", text.rpartition("/")[2]).casefold()


def _model(row: dict[str, Any]) -> Model:
    dtype, block = row.get("dtype"), row.get("block_shape")
    shape = _attention(row["attention"], row["source"]) if "attention" in row else None
    linears, mamba = row.get("linears"), row.get("mamba")
    named = row["name"], row["architecture"]
    converted: dict[str, Any] = {
        "aliases": tuple(row.get("aliases", ())),
        "dtype": Dtype(dtype) if dtype else None,
        "block_shape": (block[0], block[1]) if block else None,
        "attention": shape,
        "linears": None,
        "mamba": MambaShape(*named, **mamba) if mamba else None,
        "delta": _delta(*named, **row["delta"]) if "delta" in row else None,
    }
    model = Model(**{**row, **converted})
    if linears is None or shape is None:
        return model
    return replace(model, linears=_linears(model, shape, linears, row["source"]))


def _delta(name: str, architecture: str, *, layers: int, **heads: int) -> DeltaShape:
    found = LinearAttention(**heads)
    return DeltaShape(name, architecture, found, Dtype.BFLOAT16, layers)


def _linears(
    model: Model, attention: AttentionShape, row: dict[str, Any], source: str
) -> LinearShape:
    """The linear layers of a row; its own source, where it has one, replaces the row's."""
    total = row.get("layers", sum(kind.count for kind in attention.layers))
    dense = row.get("dense_layers", 0 if model.E else total)
    skipped = row.get("unquantised", [])
    sizes = LinearSizes(
        hidden=row.get("hidden", model.hidden),
        attention=attention,
        attention_at=tuple(range(kind.count) for kind in attention.layers),
        q_lora_rank=row.get("q_lora_rank", 0),
        index_heads=row.get("index_heads", 0),
        index_head_dim=row.get("index_head_dim", 0),
        index_wk_quantised=row.get("index_wk_quantised", True),
        intermediate=row.get("intermediate", 0),
        dense_at=range(dense),
        shared_intermediate=model.shared_intermediate,
        shared_at=range(dense, total),
    )
    return linear_shape(
        sizes,
        STYLES[model.architecture],
        Quantization(model.quantization, model.dtype, model.block_shape, model.per_channel_quant)
        if model.quantization != "none"
        else unquantised(model.dtype.value if model.dtype else None),
        lambda name, at: any(one in name for one in skipped),
        source=row.get("source", source),
    )


def _attention(row: dict[str, Any], source: str) -> AttentionShape:
    """The shape of a row's attention; its own source, where it has one, replaces the row's."""
    heads = {name: row.get(name, 0) for name in ("q_heads", "kv_heads", "head_dim", "v_head_dim")}
    if "kv_lora_rank" in row:
        heads["kv_heads"] = heads["q_heads"]
        heads["head_dim"] = row["qk_nope_head_dim"] + row["qk_rope_head_dim"]
    heads["v_head_dim"] = heads["v_head_dim"] or heads["head_dim"]
    common = {**heads, "count": row.get("layers", 0), "sinks": row.get("sinks", False)}
    kinds = [Layers(**common)]
    if "windowed" in row:
        kinds.append(Layers(**{**common, **row["windowed"]}))
    return AttentionShape(
        layers=tuple(kinds),
        kv_lora_rank=row.get("kv_lora_rank", 0),
        qk_rope_head_dim=row.get("qk_rope_head_dim", 0),
        logit_cap=row.get("logit_cap", 0.0),
        laid_out_for=row.get("laid_out_for", 0),
        context_length=row.get("context_length", 0),
        source=row.get("source", source),
    )

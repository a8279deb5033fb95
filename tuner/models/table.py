"""Read the table of well-known models. models.toml documents the fields of its rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from tuner.errors import MalformedCheckpoint, UnknownModel
from tuner.files import shipped_toml
from tuner.models.attention import AttentionShape, Layers
from tuner.models.config_json import parse_model, read_model
from tuner.models.delta_json import DeltaShape
from tuner.models.fields import is_path
from tuner.models.linear_parts import STYLES, LinearAttention, LinearSizes, linear_shape
from tuner.models.linears import LinearShape
from tuner.models.mamba_json import MambaShape
from tuner.models.model import Model
from tuner.models.quantization import Quantization, unquantised
from tuner.problems.dtypes import Dtype
from tuner.shell import command_line

_REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)
_PATHS = ("/", "./", "../", "~")
_CONFIG_IN_API = "; post its config.json; GET /v1/models lists the presets"
_CONFIG_ON_PAGES = ": the page Models lists the known models, and the API takes a config.json"


@cache
def presets() -> tuple[Model, ...]:
    """Return every model of the table, in its order."""
    return tuple(read_rows(shipped_toml("tuner.models", "models.toml")["model"]))


def find_model(target: str | bytes, name: str = "config.json") -> Model:
    """Return the preset of that name, or read a config.json from its bytes, its path or its folder.

    If a preset and a folder of one name exist, the preset is taken; ./NAME is the folder. `name` is
    the name of a model whose bytes are given. Raises UnknownModel and MalformedCheckpoint.
    """
    if isinstance(target, bytes):
        return parse_model(target, name)
    if "/" in target and is_path(target):
        return read_model(Path(target))
    try:
        return find_preset(target)
    except UnknownModel:
        if is_path(target):
            return read_model(Path(target))
        raise


def model_or_none(target: str | bytes) -> Model | None:
    """Find a model as `find_model` does; None for a text or a file that stands for no model."""
    try:
        return find_model(target)
    except (UnknownModel, MalformedCheckpoint):
        return None


def find_preset(text: str) -> Model:
    """Return the preset of that name or alias. Raises UnknownModel, which names a near preset.

    Case, spaces, underscores, hyphens and an organisation before a slash do not matter. A path is
    no name: if nothing is at the path, a preset of its last part could be another model.
    """
    if text.startswith(_PATHS):
        raise UnknownModel(
            f"no preset is called {text[:200]!r}",
            cli=", and nothing can be read there: give the path of a config.json",
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
        cli="" if near else f"; give its config.json (`{fetch}`), or see `tuner list models`",
        api="" if near else _CONFIG_IN_API,
        page="" if near else _CONFIG_ON_PAGES,
    )


def sibling(model: Model, dtype: Dtype) -> Model | None:
    """Return the preset of the same sizes whose checkpoint has this dtype; None if none exists."""
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
    """Return the presets that a checkpoint's name or path begins with.

    Of glm-4.5 and glm-4.5-fp8, return the longer alone.
    """
    last = _key(text.rstrip("/").rpartition("/")[2])
    found = {key: model for key, model in _by_key().items() if last and last.startswith(key)}
    most = len(max(found, key=len, default=""))
    return [model for key, model in found.items() if len(key) == most]


def _near(text: str) -> str:
    """Name the nearest preset if only letters differ, or hardly anything.

    Another number is another model.
    """
    names = [name for model in presets() for name in (model.name, *model.aliases)]
    (near, *_) = get_close_matches(text.casefold(), names, n=1, cutoff=0.75) or [""]
    numbers = re.findall(r"[0-9]+", text)
    close = re.findall(r"[0-9]+", near) == numbers or get_close_matches(text, [near], cutoff=0.95)
    if near and close:
        return f"; did you mean {near!r}?"
    # A preset's name and more words, such as a dtype in which no such model exists.
    begins = [name for name in names if text.casefold().startswith(f"{name}-")]
    return f"; did you mean {max(begins, key=len)!r}?" if begins else ""


@cache
def _by_key() -> dict[str, Model]:
    return {_key(name): model for model in presets() for name in (model.name, *model.aliases)}


def _key(text: str) -> str:
    return re.sub(r"[\s_-]+", "", text.rpartition("/")[2]).casefold()


Row = Mapping[str, Any]

OWN = ("name", "aliases", "source")  # fields that `like` does not copy
_COPIED = "its repository's config.json, from a public copy"
_NEVER = {"detail", "doubt", "image_intermediate", "unread"}  # a checkpoint alone says these
_KNOWN = {
    "": {"like", *map(attrgetter("name"), fields(Model))} - _NEVER,
    "attention": {
        *("q_heads", "kv_heads", "head_dim", "v_head_dim", "layers", "sinks"),
        *("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"),
        *("windowed", "logit_cap", "context_length", "laid_out_for", "dtype", "source"),
    },
    "linears": {
        *("hidden", "layers", "dense_layers", "intermediate", "q_lora_rank", "unquantised"),
        *("index_heads", "index_head_dim", "index_wk_quantised", "source"),
    },
}


def read_rows(rows: Sequence[Row]) -> Iterator[Model]:
    """Yield the model of each row.

    Raises ValueError for a field that is not known, and for a row whose `like` names no earlier
    row.
    """
    whole: dict[str, Row] = {}
    for row in rows:
        refuse_unknown(row)
        if (like := row.get("like", "")) and like not in whole:
            raise ValueError(f"{row['name']} is like {like!r}, and no row before it has that name")
        inherited = {k: v for k, v in whole[like].items() if k not in OWN} if like else {}
        merged = {**inherited, **{k: v for k, v in row.items() if k != "like"}}
        whole[row["name"]] = merged
        yield _model(merged)


def refuse_unknown(row: Row) -> None:
    """Raise ValueError for an unknown field; in parts that become arguments, Python raises."""
    parts = {"": row, "attention": row.get("attention", {}), "linears": row.get("linears", {})}
    for part, some in parts.items():
        if unknown := some.keys() - _KNOWN[part]:
            names = " and ".join(sorted(unknown))
            raise ValueError(f"{row['name']}: unknown in {part or 'a row'}: {names}")


def _model(row: Row) -> Model:
    dtype, block = row.get("dtype"), row.get("block_shape")
    if "quantization" not in row:
        dtype = dtype or Dtype.BFLOAT16.value
    source = row.get("source", _COPIED)
    shape = _attention(row["attention"], source) if "attention" in row else None
    linears, mamba = row.get("linears"), row.get("mamba")
    named = row["name"], row["architecture"]
    converted: dict[str, Any] = {
        "source": source,
        "aliases": tuple(row.get("aliases", ())),
        "n_shared_experts": row.get("n_shared_experts", int("shared_intermediate" in row)),
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
    return replace(model, linears=_linears(model, shape, linears, source))


def _delta(name: str, architecture: str, *, layers: int, **heads: int) -> DeltaShape:
    found = LinearAttention(**heads)
    return DeltaShape(name, architecture, found, Dtype.BFLOAT16, layers)


def _linears(model: Model, attention: AttentionShape, row: Row, source: str) -> LinearShape:
    """Return the linear layers of a row; their own source, if present, replaces the row's."""
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


def _attention(row: Row, source: str) -> AttentionShape:
    """Return the shape of a row's attention; its own source, if present, replaces the row's."""
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
        dtype=Dtype(row.get("dtype", Dtype.BFLOAT16.value)),
        source=row.get("source", source),
    )

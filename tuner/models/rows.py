"""Read the rows of models.toml, which says what each field means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

from tuner.models.attention import AttentionShape, Layers
from tuner.models.delta_json import DeltaShape
from tuner.models.linear_parts import STYLES, LinearAttention, LinearSizes, linear_shape
from tuner.models.linears import LinearShape
from tuner.models.mamba_json import MambaShape
from tuner.models.model import Model
from tuner.models.quantization import Quantization, unquantised
from tuner.problems.dtypes import Dtype

Row = Mapping[str, Any]

OWN = ("name", "aliases", "source")  # a row like another one does not get these from it
_COPIED = "its repository's config.json, from a public copy"
_NEVER = {"detail", "doubt", "image_intermediate", "unread"}  # a checkpoint alone says these
_KNOWN = {
    "": {"like", *map(attrgetter("name"), fields(Model))} - _NEVER,
    "attention": {
        *("q_heads", "kv_heads", "head_dim", "v_head_dim", "layers", "sinks"),
        *("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"),
        *("windowed", "logit_cap", "context_length", "laid_out_for", "source"),
    },
    "linears": {
        *("hidden", "layers", "dense_layers", "intermediate", "q_lora_rank", "unquantised"),
        *("index_heads", "index_head_dim", "index_wk_quantised", "source"),
    },
}


def read_rows(rows: Sequence[Row]) -> Iterator[Model]:
    """Yield the model of each row. Raises ValueError for a field that is not known, and for a row
    that is like none before it.
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
    """Raise ValueError for a field that no row has; in parts that become arguments, Python does."""
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


def _attention(row: Row, source: str) -> AttentionShape:
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

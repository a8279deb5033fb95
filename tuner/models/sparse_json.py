"""A model's config.json -> its sparse attention (MiniMax-M3), as sglang reads it
(srt/layers/attention/minimax_sparse_backend.py of 0.5.16 and 0.5.23).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tuner.errors import LacksLayers, MalformedCheckpoint
from tuner.models.attention import AttentionShape
from tuner.models.attention_json import attention_shape
from tuner.models.fields import Json, architecture_of, language_fields, parse, size
from tuner.models.folder import read_with


@dataclass(frozen=True)
class SparseShape:
    """A model's sparse attention, before it is divided over ranks. Its index has a head of queries
    for each head of keys.
    """

    name: str
    attention: AttentionShape
    index_dim: int
    block: int  # keys
    topk: int  # blocks that a query reads
    layers: int


def read_sparse(path: Path) -> SparseShape:
    """Read the config.json at `path`, or in the folder `path`. Raises MalformedCheckpoint."""
    return read_with(path, parse_sparse_json)


def refuse_sparse(name: str, architecture: str) -> NoReturn:
    """Refuse a model in which no sparse attention is known.

    Raises LacksLayers, or MalformedCheckpoint for a class that may have it.
    """
    error = MalformedCheckpoint if architecture.startswith("MiniMaxM3") else LacksLayers
    raise error(
        f"no sparse attention is known of {name}: name the problem itself, minimax_sparse:heads=.."
    )


def parse_sparse_json(data: bytes, name: str) -> SparseShape:
    """Read a config.json's bytes. Raises MalformedCheckpoint, and LacksLayers; see
    `refuse_sparse`.
    """
    config = parse(data)
    found = language_fields(config).get("sparse_attention_config")
    if not isinstance(found, dict):
        refuse_sparse(name, architecture_of(config))
    shape = attention_shape(config)
    _check(found, shape)
    return SparseShape(
        name=name,
        attention=shape,
        index_dim=_size(found, "sparse_index_dim"),
        block=_size(found, "sparse_block_size"),
        topk=_size(found, "sparse_topk_blocks"),
        layers=len(_sparse_layers(found)),
    )


def _size(fields: Json, name: str) -> int:
    found = size(fields, (name,))
    if not found:
        raise MalformedCheckpoint(f"its sparse_attention_config lacks {name}")
    return found


def _sparse_layers(fields: Json) -> list[int]:
    """The layers whose index has no values of its own."""
    flags = [fields.get(f"sparse_{name}") for name in ("attention_freq", "disable_index_value")]
    if not all(isinstance(flag, list) for flag in flags):
        return []
    return [at for at, (sparse, bare) in enumerate(zip(*flags, strict=False)) if sparse and bare]


def _check(fields: Json, shape: AttentionShape) -> None:
    """Raises MalformedCheckpoint for what other kernels run, or the same with other arguments."""
    known = {
        "sparse_num_index_heads": shape.layers[0].kv_heads,
        "sparse_init_block": 0,
        "sparse_local_block": 1,
        "sparse_score_type": "max",
    }
    given = {"sparse_score_type": "max", **fields}
    for name, value in known.items():
        if given.get(name) != value:
            raise MalformedCheckpoint(
                f"sparse attention is known here with {name}={value}, not {given.get(name)!r:.60}"
            )
    if not _sparse_layers(fields):
        raise MalformedCheckpoint("all layers of its index have values, which is not known here")

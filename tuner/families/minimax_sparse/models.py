"""Find the sparse attention of one rank of a model that a user names.

A name is a preset, or a folder or file with a config.json.
"""

from __future__ import annotations

from tuner.engines.engine import engine_module
from tuner.families.minimax_sparse.problem import NAME, MinimaxSparse
from tuner.models.attention import check_division, sharing_ranks
from tuner.models.model import Model
from tuner.models.serving import Resolved, Serving
from tuner.models.sparse_json import SparseShape, parse_sparse_json, read_sparse, refuse_sparse
from tuner.models.table import preset_or_file


def reads(text: str, engine: str = "") -> bool:
    """No engine names a file of these kernels in its log."""
    return False


def resolve(text: str, serving: Serving) -> Resolved:
    """The problem of a preset, or of a folder or file with a config.json.

    Raises UnknownModel, MalformedCheckpoint, IndivisibleShape, UnsupportedFamily or BadProblem.
    """
    found = preset_or_file(text, read_sparse)
    if isinstance(found, Model):
        found = found.sparse or refuse_sparse(found.name, found.architecture)
    return resolve_model(found, serving)


def resolve_config(data: bytes, name: str, serving: Serving) -> Resolved:
    """The problem of a config.json; see `resolve`."""
    return resolve_model(parse_sparse_json(data, name), serving)


def resolve_model(shape: SparseShape, serving: Serving) -> Resolved:
    """The problem of one rank. Raises IndivisibleShape, UnsupportedFamily or BadProblem."""
    engine_module(serving.engine, NAME)  # refuses an engine that has no such kernels
    tp = sharing_ranks(shape.name, serving.tp, serving.options.get("dp") or 1)
    check_division(shape.name, shape.attention, tp)
    whole = shape.attention.layers[0]
    problem = MinimaxSparse(
        heads=whole.q_heads // tp,
        kv_heads=max(1, whole.kv_heads // tp),  # ranks that share one hold a copy each
        head_dim=whole.head_dim,
        index_dim=shape.index_dim,
        block=shape.block,
        topk=shape.topk,
        dtype=serving.dtype or shape.attention.dtype,
    )
    return Resolved((problem,), (f"{shape.layers} layers of sparse attention",))

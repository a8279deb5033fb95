"""Find the chunked scan of a rank of a model."""

from __future__ import annotations

from tuner.engines.engine import engine_module
from tuner.families.scans.chunk_scan.problem import NAME, ChunkScan
from tuner.models.attention import sharing_ranks
from tuner.models.mamba_json import refuse_preset
from tuner.models.model import Model
from tuner.models.serving import Resolved, Serving


def reads(text: str, engine: str = "") -> bool:
    """Return False: no engine names a file of these kernels in its log."""
    return False


def problems(model: Model, serving: Serving) -> Resolved:
    """Return the problem of a rank.

    Raises MalformedCheckpoint, IndivisibleShape, UnsupportedFamily or BadProblem.
    """
    model.refuse_unread("mamba")
    shape = model.mamba or refuse_preset(model.name, model.architecture)
    rules = engine_module(serving.engine, NAME)
    tp = sharing_ranks(model.name, serving.tp, serving.options.get("dp") or 1)
    dtype = serving.dtype or shape.dtype
    asked = serving.options.get("mamba_state_dtype")
    problem = ChunkScan(
        heads=shape.heads_of_rank(tp),
        head_dim=shape.head_dim,
        groups=max(1, shape.groups // tp),
        state_size=shape.state_size,
        chunk_size=shape.chunk_size,
        dtype=dtype,
        state_dtype=asked or rules.state_dtype(shape, dtype),
    )
    layers = f"{shape.layers} Mamba-2 layers" if shape.layers else "the Mamba-2 layers"
    note = f"{layers} of {shape.heads} heads; chunks of {shape.chunk_size} tokens"
    return Resolved((problem,), (note,))

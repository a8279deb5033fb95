"""Find the gated delta nets of a rank of a model."""

from __future__ import annotations

from tuner.engines.engine import engine_module
from tuner.families.scans.gated_delta.problem import NAME, GatedDelta
from tuner.models.attention import sharing_ranks
from tuner.models.delta_json import refuse_delta
from tuner.models.model import Model
from tuner.models.serving import Resolved, Serving


def reads(text: str, engine: str = "") -> bool:
    """Return False: no engine names a file of these kernels in its log."""
    return False


def problems(model: Model, serving: Serving) -> Resolved:
    """Return the problem of a rank.

    Raises MalformedCheckpoint, IndivisibleShape, UnsupportedFamily or BadProblem.
    """
    model.refuse_unread("delta")
    shape = model.delta or refuse_delta(model.name, model.architecture, preset=True)
    rules = engine_module(serving.engine, NAME)
    tp = sharing_ranks(model.name, serving.tp, serving.options.get("dp") or 1)
    keys, values = shape.divided(tp)
    asked = serving.options.get("mamba_state_dtype")
    problem = GatedDelta(
        key_heads=keys,
        value_heads=values,
        key_dim=shape.heads.key_dim,
        value_dim=shape.heads.value_dim,
        dtype=serving.dtype or shape.dtype,
        state_dtype=asked or rules.state_dtype(shape),
        chain=rules.CHAIN,
    )
    heads = f"{shape.heads.key_heads} key and {shape.heads.value_heads} value heads"
    return Resolved((problem,), (f"{shape.layers} gated delta nets of {heads}",))

"""Find the gated delta nets of one rank of a model that a user names.

A name is a preset, or a folder or file with a config.json.
"""

from __future__ import annotations

from tuner.engines.engine import engine_module
from tuner.families.scans.gated_delta.problem import NAME, GatedDelta
from tuner.models.delta_json import DeltaShape, parse_delta_json, read_delta, refuse_delta
from tuner.models.model import Model
from tuner.models.serving import Resolved, Serving
from tuner.models.table import preset_or_file


def reads(text: str, engine: str = "") -> bool:
    """No engine names a file of these kernels in its log."""
    return False


def resolve(text: str, serving: Serving) -> Resolved:
    """The problem of a preset, or of a folder or file with a config.json.

    Raises UnknownModel, MalformedCheckpoint, IndivisibleShape, UnsupportedFamily or BadProblem.
    """
    found = preset_or_file(text, read_delta)
    if isinstance(found, Model):
        found = found.delta or refuse_delta(found.name, found.architecture, preset=True)
    return resolve_model(found, serving)


def resolve_config(data: bytes, name: str, serving: Serving) -> Resolved:
    """The problem of a config.json; see `resolve`."""
    return resolve_model(parse_delta_json(data, name), serving)


def resolve_model(shape: DeltaShape, serving: Serving) -> Resolved:
    """The problem of one rank. Raises IndivisibleShape, UnsupportedFamily or BadProblem."""
    rules = engine_module(serving.engine, NAME)
    keys, values = shape.divided(serving.tp)
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

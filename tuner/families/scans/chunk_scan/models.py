"""Find the chunked scan of one rank of a model that a user names.

A name is a preset, or a folder or file with a config.json.
"""

from __future__ import annotations

from tuner.engines.engine import engine_module
from tuner.families.scans.chunk_scan.problem import NAME, ChunkScan
from tuner.models.mamba_json import MambaShape, parse_mamba_json, read_mamba, refuse_preset
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
    found = preset_or_file(text, read_mamba)
    if isinstance(found, Model):
        found = found.mamba or refuse_preset(found.name, found.architecture)
    return resolve_model(found, serving)


def resolve_config(data: bytes, name: str, serving: Serving) -> Resolved:
    """The problem of a config.json; see `resolve`."""
    return resolve_model(parse_mamba_json(data, name), serving)


def resolve_model(shape: MambaShape, serving: Serving) -> Resolved:
    """The problem of one rank. Raises IndivisibleShape, UnsupportedFamily or BadProblem."""
    rules = engine_module(serving.engine, NAME)
    dtype = serving.dtype or shape.dtype
    asked = serving.options.get("mamba_state_dtype")
    problem = ChunkScan(
        heads=shape.heads_of_rank(serving.tp),
        head_dim=shape.head_dim,
        groups=max(1, shape.groups // serving.tp),
        state_size=shape.state_size,
        chunk_size=shape.chunk_size,
        dtype=dtype,
        state_dtype=asked or rules.state_dtype(shape, dtype),
    )
    layers = f"{shape.layers} Mamba-2 layers" if shape.layers else "the Mamba-2 layers"
    note = f"{layers} of {shape.heads} heads; chunks of {shape.chunk_size} tokens"
    return Resolved((problem,), (note,))

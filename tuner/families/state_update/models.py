"""Find the state update of one rank of a model that a user names.

A name is a preset, or a folder or file with a config.json.
"""

from __future__ import annotations

from types import ModuleType

from tuner.engines.engine import engine_module, engine_names, supports
from tuner.errors import BadProblem
from tuner.families.state_update.problem import StateUpdate
from tuner.models.mamba_json import MambaShape, parse_mamba_json, read_mamba, refuse_preset
from tuner.models.model import Model
from tuner.models.serving import Resolved, Serving
from tuner.models.table import preset_or_file


def reads(text: str, engine: str = "") -> bool:
    """Whether an engine's log line or path names a config file of a state update.

    `engine`: of this engine alone.
    """
    asked = (name for name in _engines() if engine in ("", name))
    return any(_rules(name).find_file_name(text) is not None for name in asked)


def resolve(text: str, serving: Serving) -> Resolved:
    """The problem of a preset, or of a folder or file with a config.json.

    Raises UnknownModel, MalformedCheckpoint, IndivisibleShape, UnsupportedFamily or BadProblem.
    """
    if reads(text):
        raise BadProblem(
            "the name of this file does not say how many heads a rank has: give the folder of the "
            "model's config.json, with ",
            cli="--mamba",
            api="its problem",
        )
    found = preset_or_file(text, read_mamba)
    if isinstance(found, Model):
        found = found.mamba or refuse_preset(found.name, found.architecture)
    return resolve_model(found, serving)


def resolve_config(data: bytes, name: str, serving: Serving) -> Resolved:
    """The problem of a config.json; see `resolve`."""
    return resolve_model(parse_mamba_json(data, name), serving)


def resolve_model(shape: MambaShape, serving: Serving) -> Resolved:
    """The problem of one rank. Raises IndivisibleShape, UnsupportedFamily or BadProblem."""
    rules = _rules(serving.engine)
    dtype = serving.dtype or shape.dtype
    asked = serving.options.get("mamba_ssm_cache_dtype")
    problem = StateUpdate(
        heads=shape.heads_of_rank(serving.tp),
        head_dim=shape.head_dim,
        state_size=shape.state_size,
        groups=max(1, shape.groups // serving.tp),
        dtype=dtype,
        cache_dtype=asked or rules.cache_dtype(shape, dtype),
    )
    layers = f"{shape.layers} Mamba-2 layers" if shape.layers else "the Mamba-2 layers"
    note = f"{layers} of {shape.heads} heads; {problem.cache_dtype} states"
    return Resolved((problem,), (note,))


def _engines() -> list[str]:
    return [name for name in engine_names() if supports(name, "state_update")]


def _rules(engine: str) -> ModuleType:
    """The engine's rules for state updates: `engines/<engine>/state_update`."""
    return engine_module(engine, "state_update")

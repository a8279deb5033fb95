"""What the user names -> the problem to tune.

A name is a preset, a folder or file with a config.json, or an engine's warning line.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tuner.devices.table import Device
from tuner.engines.sglang.attention.kv_splits import engine_kv_splits
from tuner.engines.sglang.fused_moe.shared_experts import Fusion, shared_expert_fusion
from tuner.errors import BadProblem, UnknownModel
from tuner.families.attention.models import (
    ResolvedAttention,
    find_attention,
    resolve_attention,
    resolve_attention_model,
)
from tuner.families.fused_moe.problem import Dtype, FusedMoe
from tuner.families.fused_moe.warning_line import MissingFile, choose, parse_config_name
from tuner.models.attention import AttentionShape, Layers, attention_problems
from tuner.models.attention_json import read_attention
from tuner.models.config_json import parse_checkpoint, read_checkpoint
from tuner.models.fields import is_path
from tuner.models.model import Model, moe_problem
from tuner.models.table import find_preset, presets
from tuner.problems.text import parse_fused_moe

__all__ = [
    "AttentionShape",
    "Fusion",
    "Layers",
    "MissingFile",
    "Model",
    "Resolved",
    "ResolvedAttention",
    "attention_problems",
    "engine_kv_splits",
    "find_attention",
    "find_model",
    "find_preset",
    "moe_problem",
    "parse_checkpoint",
    "parse_config_name",
    "presets",
    "read_attention",
    "read_checkpoint",
    "resolve",
    "resolve_attention",
    "resolve_attention_model",
    "resolve_model",
    "shared_expert_fusion",
]

_UNGATED = {"NemotronHForCausalLM"}


@dataclass(frozen=True)
class Resolved:
    """A problem, and what was assumed on the way to it."""

    problem: FusedMoe
    device_name: str | None = None  # the GPU that a warning line names, in the engine's spelling
    notes: tuple[str, ...] = ()  # sentences for the user


def resolve(
    text: str,
    *,
    tp: int = 1,
    ep: int = 1,
    dtype: Dtype | None = None,
    block_shape: tuple[int, int] | None = None,
    engine_version: str | None = None,
    device: Device | None = None,
    hidden_size: int | None = None,
    top_k: int | None = None,
    fuse_shared: bool | None = None,
) -> Resolved:
    """The problem that `text` names: a PROBLEM, an engine's warning line or config file name, a
    folder or file with a config.json, or a preset.

    The sizes of a PROBLEM and of a warning line are one rank's already, so tp, ep and fuse_shared
    do not apply to them. Without `device`, a GPU that fuses as newer ones do is assumed.
    Raises UnknownModel, MalformedCheckpoint, IndivisibleShape or BadProblem.
    """
    if text.startswith(f"{FusedMoe.family}:"):
        return Resolved(parse_fused_moe(text))
    if missing := parse_config_name(text):
        return _of_warning(missing, dtype, block_shape, hidden_size, top_k)
    return resolve_model(
        find_model(text),
        tp=tp,
        ep=ep,
        dtype=dtype,
        block_shape=block_shape,
        engine_version=engine_version,
        device=device,
        fuse_shared=fuse_shared,
    )


def resolve_model(
    model: Model,
    *,
    tp: int = 1,
    ep: int = 1,
    dtype: Dtype | None = None,
    block_shape: tuple[int, int] | None = None,
    engine_version: str | None = None,
    device: Device | None = None,
    fuse_shared: bool | None = None,
) -> Resolved:
    """The problem of one rank of a model; see `resolve`. Raises IndivisibleShape or BadProblem."""
    fusion = shared_expert_fusion(
        model,
        engine_version,
        device.arch if device else 90,
        tp=tp,
        ep=ep,
        dtype=dtype,
        force=fuse_shared,
    )
    problem = moe_problem(model, tp, ep, dtype=dtype, block_shape=block_shape, fusion=fusion)
    notes = [fusion.why] if model.n_shared_experts else []
    if model.architecture in _UNGATED:
        notes.append(f"{model.architecture}'s experts have no gate; they are timed with one")
    return Resolved(problem, notes=tuple(notes))


def find_model(text: str) -> Model:
    """A preset's model, or that of a folder or file with a config.json.

    A preset wins over a folder of its bare name; ./NAME is the folder.
    Raises UnknownModel or MalformedCheckpoint.
    """
    if "/" in text and is_path(text):
        return read_checkpoint(Path(text))
    try:
        return find_preset(text)
    except UnknownModel:
        if is_path(text):
            return read_checkpoint(Path(text))
        raise


def _of_warning(
    missing: MissingFile,
    dtype: Dtype | None,
    block_shape: tuple[int, int] | None,
    hidden_size: int | None,
    top_k: int | None,
) -> Resolved:
    if dtype and missing.dtype and dtype is not missing.dtype:
        raise BadProblem(f"{missing.file_name} is of {missing.dtype.value}, not {dtype.value}")
    K, k, origin = choose(missing, hidden_size, top_k)
    problem = FusedMoe(
        E=missing.E,
        N=missing.N,
        K=K,
        top_k=k,
        dtype=missing.dtype or dtype or Dtype.BFLOAT16,
        block_shape=missing.block_shape or block_shape,
        per_channel_quant=missing.per_channel_quant and not block_shape,
    )
    notes = [origin]
    if missing.per_channel_quant and "per_channel_quant" not in missing.file_name:
        notes.append("int8_w8a8 without blocks is quantised per channel")
    return Resolved(problem, missing.device_name or None, tuple(notes))

"""What tests of several folders build: problems of models, as one rank runs them."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.devices.table import Device
from tuner.families.attention import models as attention_models
from tuner.families.attention.problem import Attention
from tuner.families.fused_moe import models as moe_models
from tuner.families.fused_moe.problem import FusedMoe
from tuner.jobs.targets import resolve_target
from tuner.models.attention import HasAttention
from tuner.models.model import Model
from tuner.models.serving import Resolved, Serving
from tuner.problems.dtypes import Dtype
from tuner.problems.registry import family_named


@dataclass(frozen=True)
class Layer:
    """A fused-MoE layer that a text stands for."""

    problem: FusedMoe
    notes: tuple[str, ...]
    device_name: str | None = None


def serving(
    *,
    tp: int = 1,
    dtype: Dtype | None = None,
    engine_version: str | None = None,
    device: Device | None = None,
    **options: object,
) -> Serving:
    """How a model is served; `options` are a family's, None where they are not given."""
    given = {name: value for name, value in options.items() if value is not None}
    return Serving("sglang", engine_version, device, tp, dtype, given)


def resolve(text: str, **how: object) -> Layer:
    """The layer that a problem's text, a line, a preset or a path stands for."""
    target = resolve_target(text, serving(**how))
    if target.is_model:
        return _layer(moe_models.resolve(text, serving(**how)))
    return _layer(Resolved(target.problems, target.notes))


def resolve_model(model: Model, **how: object) -> Layer:
    return _layer(moe_models.resolve_model(model, serving(**how)))


def resolve_attention(text: str, **how: object) -> Resolved:
    """The attention problems that a problem's text, a preset or a path stands for."""
    target = resolve_target(text, serving(**how), family=family_named("extend_attention"))
    return Resolved(target.problems, target.notes)


def resolve_attention_model(model: HasAttention, **how: object) -> Resolved:
    return attention_models.resolve_model(model, serving(**how))


def attention_of(text: str, **how: object) -> tuple[Attention, ...]:
    return tuple(p for p in resolve_attention(text, **how).problems if isinstance(p, Attention))


def _layer(resolved: Resolved) -> Layer:
    (problem,) = resolved.problems
    assert isinstance(problem, FusedMoe)
    return Layer(problem, resolved.notes, resolved.device_name)

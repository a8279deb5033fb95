from __future__ import annotations

from toy_family.problem import Scale
from tuner.errors import LacksLayers
from tuner.models.model import Model
from tuner.models.serving import Resolved, Serving


def reads(text: str, engine: str = "") -> bool:
    return False


def problems(model: Model, serving: Serving) -> Resolved:
    if not model.hidden:
        raise LacksLayers(f"{model.name} says nothing of toys")
    return Resolved((Scale(model.hidden // serving.tp),), ("toys are served as they are",))

from __future__ import annotations

from toy_family.problem import Scale
from tuner.errors import UnknownModel
from tuner.models.serving import Resolved, Serving
from tuner.models.table import find_preset


def reads(text: str, engine: str = "") -> bool:
    return False


def resolve(text: str, serving: Serving) -> Resolved:
    return Resolved(
        (Scale(find_preset(text).hidden // serving.tp),), ("toys are served as they are",)
    )


def resolve_config(data: bytes, name: str, serving: Serving) -> Resolved:
    raise UnknownModel(f"{name} says nothing of toys")

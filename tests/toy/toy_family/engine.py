from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from toy_family.problem import Scale
from tuner.compile.candidates import Binder
from tuner.devices.target import Target
from tuner.engines.engine import Engine, engine_module
from tuner.engines.file_engine import FileKey, PointwiseFiles


@dataclass(frozen=True)
class ToyKey(FileKey):
    columns: int
    device: str


class ToyKernels(Protocol):
    @property
    def hash(self) -> str: ...
    def binder(self, problem: Scale, target: Target) -> Binder: ...


ToyFiles = PointwiseFiles[Scale, ToyKey, ToyKernels]


def toy_engine(engine: Engine) -> ToyFiles:
    found: ToyFiles = engine_module(engine.name, "toy").open_family(engine)
    return found

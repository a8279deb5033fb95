from __future__ import annotations

from typing import Protocol

from toy_family.problem import Scale
from tuner.compile.candidates import Binder
from tuner.devices.target import CUDA
from tuner.engines.engine import Engine, engine_module
from tuner.problems.points import Config


class ToyKernels(Protocol):
    @property
    def hash(self) -> str: ...
    def binder(self, problem: Scale) -> Binder: ...


class ToyEngine(Protocol):
    def lift(self, backend: str = CUDA) -> ToyKernels: ...
    def file_name(self, problem: Scale, device_name: str) -> str: ...
    def default_config(self) -> Config: ...


def toy_engine(engine: Engine) -> ToyEngine:
    found: ToyEngine = engine_module(engine.name, "toy").open_family(engine)
    return found

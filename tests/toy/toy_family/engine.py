from __future__ import annotations

from dataclasses import dataclass

from toy_family.problem import Scale
from tuner.engines.engine import Engine, engine_module
from tuner.engines.file_engine import FileKey, PointwiseFiles
from tuner.kernels.binding import FamilyKernels


@dataclass(frozen=True)
class ToyKey(FileKey):
    columns: int
    device: str


ToyFiles = PointwiseFiles[Scale, ToyKey, FamilyKernels]


def toy_engine(engine: Engine) -> ToyFiles:
    found: ToyFiles = engine_module(engine.name, "toy").open_family(engine)
    return found

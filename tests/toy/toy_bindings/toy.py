"""What the engine has for the family: its kernel, its default, its files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from toy_family.engine import ToyKey
from toy_family.problem import Scale

from tuner.devices.table import Device
from tuner.devices.target import CUDA, Target
from tuner.engines.config_files import PROVENANCE, EntryFields, config_file_text
from tuner.engines.engine import Engine
from tuner.engines.file_engine import PointwiseFiles
from tuner.errors import ExportRefused, MalformedConfigFile
from tuner.export.delivery import Delivery, ExportFile
from tuner.export.sized_files import Content, SizedFile, build_files
from tuner.kernels.binding import (
    Binding,
    Constant,
    FamilyKernels,
    Integer,
    Pointer,
    bind,
)
from tuner.kernels.lift import Lifted, lift
from tuner.problems.points import Candidate, Config, Problem
from tuner.problems.results import Winner

NAMES = ("BLOCK", "num_warps")  # of an entry


@dataclass(frozen=True)
class Kernels(FamilyKernels):
    lifted: Lifted

    def bound(self, problem: Scale, candidate: Candidate, target: Target) -> Binding:
        config = candidate.config
        values = {
            "x_ptr": Pointer("fp16"),
            "y_ptr": Pointer("fp16"),
            "n": Integer(candidate.point.batch_size * problem.columns),
            "BLOCK": Constant(config["BLOCK"]),
        }
        parameters = self.lifted.parameters("scale_kernel")
        options = {"num_warps": config["num_warps"]}
        return bind(self.lifted.origin, "scale_kernel", parameters, values, options)


@dataclass(frozen=True)
class Toys(PointwiseFiles[Scale, ToyKey, Kernels]):
    grid = ()

    @property
    def package_root(self) -> Path:
        return self.engine.root

    def file_name(self, problem: Scale, device: Device) -> str:
        return f"columns={problem.columns},device_name={device.name}.json"

    def read_file_name(self, name: str) -> ToyKey:
        match = re.fullmatch(r"columns=(\d+),device_name=(\w+)\.json", name)
        if match is None:
            raise MalformedConfigFile(f"{name!r} is no toy's")
        return ToyKey(int(match[1]), match[2])

    def fields_of(self, key: ToyKey) -> EntryFields:
        return EntryFields(NAMES, NAMES)

    def default_config(self, problem: Scale, device: Device, batch_size: int) -> Config:
        return Config({"BLOCK": 128, "num_warps": 4})

    def lift(self, platform: str = CUDA) -> Kernels:
        root, origin = self.engine.root, f"{self.engine.name} {self.engine.version}"
        return Kernels(lift(root / "kernels.py", ("scale_kernel",), root, origin, platform))


@dataclass(frozen=True)
class ToyLayout:
    toys: Toys
    device: Device
    root: Path

    def path(self, problem: Problem, triton: str) -> Path:
        assert isinstance(problem, Scale)
        return self.root / "toys" / self.toys.file_name(problem, self.device)

    def sizes(self, problem: Problem, triton: str) -> Sequence[int]:
        assert isinstance(problem, Scale)
        return self.toys.sizes(problem, self.device)

    def sidecar(self, path: Path) -> Path:
        return self.root / PROVENANCE / "toys" / path.name

    def text(self, content: Content) -> str:
        return config_file_text(content.entries, EntryFields(NAMES, NAMES))


@dataclass(frozen=True)
class ToyDelivery(Delivery):
    toys: Toys

    note = "toys need no servers"
    variable = "TOY_DIR"

    def asked(self, problem: Problem, device: Device) -> Sequence[str]:
        assert isinstance(problem, Scale)
        return [self.toys.file_name(problem, device)]

    def obstacle(self, *, into_engine: bool) -> str:
        return "toys do not belong in the engine's package" if into_engine else ""

    def files(self, winners: Sequence[Winner], device: Device, root: Path) -> Sequence[SizedFile]:
        return build_files(winners, ToyLayout(self.toys, device, root))

    def verify(self, files: Iterable[ExportFile], device: Device, root: Path) -> None:
        for file in files:
            if file.path.read_text() != file.text():
                raise ExportRefused(f"{file.path} does not read as it was written")


def open_family(engine: Engine) -> Toys:
    return Toys(engine)


def open_delivery(engine: Engine) -> ToyDelivery:
    return ToyDelivery(Toys(engine))

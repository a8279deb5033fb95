from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toy_family.engine import toy_engine
from toy_family.problem import Kernel, Scale
from tuner.compile import Farm, KernelCompiler
from tuner.devices.table import Device
from tuner.engines.engine import Engine
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled

FILE_OPTIONS: tuple[str, ...] = ()


@dataclass(frozen=True)
class ToyCheck:
    compiled: Sequence[tuple[Candidate, Compiled]]

    @property
    def fits(self) -> bool:
        return all(result.ok for _, result in self.compiled)

    def as_json(self) -> dict[str, Any]:
        return {
            "entries": [
                {"rows": one.point.batch_size, "config": dict(one.config), "fits": result.ok}
                for one, result in self.compiled
            ]
        }

    def as_text(self) -> str:
        return "\n".join(f"{one} {result.status.value}" for one, result in self.compiled)


EXAMPLE_NAME = "toy,device_name=NVIDIA_L40S.json"


def claims(name: str, engine: Engine) -> bool:
    return name.startswith("toy,")


def check_files(
    files: Sequence[Path], device: Device, engine: Engine, options: Mapping[str, Any]
) -> ToyCheck:
    found: list[tuple[Candidate, Compiled]] = []
    for path in files:
        values = json.loads(path.read_text())
        problem = Scale(values["columns"])
        entries = {int(rows): Config(config) for rows, config in values["rows"].items()}
        asked = [Candidate(Point(rows, Kernel.SCALE), c) for rows, c in entries.items()]
        with Farm() as farm:
            binder = toy_engine(engine).lift(device.target.backend).binder(problem)
            compiler = KernelCompiler(farm, binder, device)
            compiler.submit(asked)
            while batch := compiler.poll(wait=True):
                found += batch
    return ToyCheck(found)

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toy_family.engine import toy_engine
from toy_family.problem import Kernel, Scale
from tuner.devices.table import Device
from tuner.engines.engine import Engine
from tuner.families.check import Asked, Check, CheckedEntry, Plan, check_plans
from tuner.problems.points import Candidate, Config, Point

FILE_OPTIONS: tuple[str, ...] = ()
EXAMPLE_NAME = "toy,device_name=NVIDIA_L40S.json"


class ToyCheck(Check[CheckedEntry]):
    columns = ("rows", "block")
    by = "rows"

    def cells(self, entry: CheckedEntry) -> tuple[object, ...]:
        return entry.size, entry.config["BLOCK"]

    def fields(self, entry: CheckedEntry) -> dict[str, Any]:
        return {"rows": entry.size, "config": dict(entry.config)}


def claims(name: str, engine: Engine) -> bool:
    return name.startswith("toy,")


def check_files(
    files: Sequence[Path], device: Device, engine: Engine, options: Mapping[str, Any]
) -> ToyCheck:
    return check_plans(ToyCheck, [_plan(path, device, engine) for path in files], device, engine)


def _plan(path: Path, device: Device, engine: Engine) -> Plan[Scale]:
    values = json.loads(path.read_text())
    problem = Scale(values["columns"])
    entries = {int(rows): Config(config) for rows, config in values["rows"].items()}
    asked = [
        Asked(Kernel.SCALE, rows, config, Candidate(Point(rows, Kernel.SCALE), config))
        for rows, config in entries.items()
    ]
    binder = toy_engine(engine).lift(device.target.backend).binder(problem)
    return Plan(str(path), problem, binder, asked)

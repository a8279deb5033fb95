from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toy_family.engine import toy_engine
from toy_family.problem import Kernel, Scale
from tuner.devices.table import Device
from tuner.engines.config_files import read_config_file
from tuner.engines.engine import Engine
from tuner.families.check import Check, CheckedEntry, CheckGroup, EntryToCheck, check_groups
from tuner.problems.points import Candidate, Point

FILE_OPTIONS: tuple[str, ...] = ()
EXAMPLE_NAME = "columns=1024,device_name=NVIDIA_L40S.json"


class ToyCheck(Check[CheckedEntry]):
    columns = ("rows", "block")
    by = "rows"

    def cells(self, entry: CheckedEntry) -> tuple[object, ...]:
        return entry.size, entry.config["BLOCK"]

    def fields(self, entry: CheckedEntry) -> dict[str, Any]:
        return {"rows": entry.size, "config": dict(entry.config)}


def claims(name: str, engine: Engine) -> bool:
    return toy_engine(engine).claims(name)


def asked_names(problems: Sequence[Scale], device: Device, engine: Engine) -> list[str]:
    return [toy_engine(engine).file_name(problem, device) for problem in problems]


def check_files(
    files: Sequence[Path], device: Device, engine: Engine, options: Mapping[str, Any]
) -> ToyCheck:
    return check_groups(ToyCheck, [_group(path, device, engine) for path in files], device, engine)


def _group(path: Path, device: Device, engine: Engine) -> CheckGroup[Scale]:
    toys = toy_engine(engine)
    key = toys.read_file_name(path.name)
    problem, entries = Scale(key.columns), read_config_file(path, toys.fields_of(key)).entries
    asked = [
        EntryToCheck(Kernel.SCALE, rows, config, Candidate(Point(rows, Kernel.SCALE), config))
        for rows, config in entries.items()
    ]
    return CheckGroup(
        str(path), problem, toys.lift(device.target.platform).binder(problem, device.target), asked
    )

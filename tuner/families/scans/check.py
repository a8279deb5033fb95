"""Check whether the kernels that an engine runs, or that files configure, compile and fit on a
device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.devices.table import Device
from tuner.engines.engine import Engine
from tuner.families.check import (
    NO_FLAGS,
    Check,
    CheckedEntry,
    CheckGroup,
    EntryToCheck,
    check_groups,
    other_kernel,
)
from tuner.families.scans.engine import scan_engine
from tuner.families.scans.files import file_name, read_scan_file
from tuner.families.scans.scan import ScanProblem, kernel_of, tokens_of
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.registry import names_below

EXAMPLE_NAME = (
    "gated_delta,key_heads=16,value_heads=32,key_dim=128,value_dim=128,dtype=bfloat16,"
    "state_dtype=float32,device_name=NVIDIA_L40S.json"
)
_NAME = re.compile(r"(\w+),\w+=\d+,\S+,device_name=[^,/\\]+\.json", re.ASCII)
FILE_OPTIONS: tuple[str, ...] = ()


class ScanCheck(Check[CheckedEntry]):
    """The results for every entry. Its size is a number of tokens."""

    columns = ("kernel", "tokens", "blocks", "warps", "stages", "shared")
    by = "tokens"

    def cells(self, entry: CheckedEntry) -> tuple[object, ...]:
        config, compiled = entry.config, entry.compiled
        blocks = "x".join(
            str(config.get(name)) for name in kernel_of(entry.problem, entry.part).blocks
        )
        launch = config.get("num_warps"), config.get("num_stages")
        shared = compiled.shared_bytes if compiled else None
        return (entry.part.value, entry.size, blocks, *launch, shared)

    def fields(self, entry: CheckedEntry) -> dict[str, Any]:
        where = {"file": entry.file, "part": entry.part.value, "tokens": entry.size}
        return {**where, "config": dict(entry.config)}


def claims(name: str, engine: Engine) -> bool:
    """Say whether a file name is the name of a chunked scan's file."""
    found = _NAME.fullmatch(name)
    return found is not None and found[1] in names_below(str(__package__))


def asked_names(problems: Sequence[ScanProblem], device: Device, engine: Engine) -> list[str]:
    """Return the names of the files that the plugin looks for."""
    return [file_name(problem, device.name) for problem in problems]


def check_files(
    files: Sequence[Path], device: Device, engine: Engine, options: Mapping[str, Any]
) -> ScanCheck:
    """Compile every entry of the files for the device.

    Raises MalformedConfigFile for a malformed file, and UnsupportedKernel for a release without the
    kernels or for an entry that the engine's kernel does not take.
    """
    groups = []
    for path in files:
        file = read_scan_file(path)
        asked = [(entry.point, entry.config) for entry in file.entries]
        groups.append(_group(str(path), file.problem, asked, device, engine))
    return check_groups(ScanCheck, groups, device, engine)


def check_problems(
    problems: Sequence[ScanProblem],
    device: Device,
    engine: Engine,
    flags: Mapping[str, str] = NO_FLAGS,
) -> ScanCheck:
    """Compile the configurations that the engine has for the problems: its constants, or its list.
    `flags` are the server's.

    If another library runs a problem, nothing of the problem is compiled, and a note says so.
    Raises UnsupportedKernel for a release without the kernels.
    """
    groups = []
    for problem in problems:
        if group := other_kernel(problem, device, engine, flags):
            groups.append(group)
            continue
        kernels = scan_engine(engine, problem.family).lift(device.target.platform)
        asked: list[tuple[Point, Config]] = []
        for part in problem.parts:
            about = problem, part, device.target
            own = kernels.constants(*about)
            point = Point(1, part, kernels.first_tokens(problem))
            asked += [(point, one) for one in ([own] if own else kernels.listed(*about))]
        name = f"{problem.spec()}: the configurations of {engine.name} {engine.version}"
        groups.append(_group(name, problem, asked, device, engine))
    return check_groups(ScanCheck, groups, device, engine, flags=flags)


def _group(
    name: str,
    problem: ScanProblem,
    asked: Sequence[tuple[Point, Config]],
    device: Device,
    engine: Engine,
) -> CheckGroup[ScanProblem]:
    kernels = scan_engine(engine, problem.family).lift(device.target.platform)
    entries = [
        EntryToCheck(point.part, tokens_of(point), config, Candidate(point, config))
        for point, config in asked
    ]
    about = problem, device.target
    return CheckGroup(name, problem, kernels.binder(*about), entries, kernels.companions(*about))

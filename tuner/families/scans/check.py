"""Check whether what an engine runs, or what files say, compiles and fits on a device."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.devices.table import Device
from tuner.engines.engine import Engine
from tuner.families.check import Check, CheckedEntry, CheckPlan, EntryToCheck, check_plans
from tuner.families.scans.engine import BLOCKS, scan_engine
from tuner.families.scans.files import read_scan_file
from tuner.families.chunk_scan.problem import NAME, ChunkScan, ScanKernel, tokens_of
from tuner.problems.points import Candidate, Config, Point

FILE_OPTIONS: tuple[str, ...] = ()
EXAMPLE_NAME = (
    "chunk_scan,heads=64,head_dim=64,groups=8,state_size=128,chunk_size=128,dtype=bfloat16,"
    "state_dtype=float32,device_name=NVIDIA_L40S.json"
)
_NAME = re.compile(rf"{NAME},heads=\d+,\S+,device_name=[^,/\\]+\.json", re.ASCII)


class ScanCheck(Check[CheckedEntry]):
    """The results for every entry. Its size is a number of tokens."""

    columns = ("kernel", "tokens", "blocks", "warps", "stages", "shared")
    by = "tokens"

    def cells(self, entry: CheckedEntry) -> tuple[object, ...]:
        assert isinstance(entry.part, ScanKernel)  # the problem is a scan
        config, compiled = entry.config, entry.compiled
        blocks = "x".join(str(config.get(name)) for name in BLOCKS[entry.part])
        launch = config.get("num_warps"), config.get("num_stages")
        shared = compiled.shared_bytes if compiled else None
        return (entry.part.value, entry.size, blocks, *launch, shared)

    def fields(self, entry: CheckedEntry) -> dict[str, Any]:
        where = {"file": entry.file, "part": entry.part.value, "tokens": entry.size}
        return {**where, "config": dict(entry.config)}


def claims(name: str, engine: Engine) -> bool:
    """Whether a name is that of a file of chunked scans."""
    return _NAME.fullmatch(name) is not None


def check_files(
    files: Sequence[Path], device: Device, engine: Engine, options: Mapping[str, Any]
) -> ScanCheck:
    """Compile every entry of the files for the device.

    Raises MalformedConfigFile for a malformed file, and UnsupportedKernel for an entry that the
    engine's kernel does not take, or a release without the kernels.
    """
    plans = []
    for path in files:
        file = read_scan_file(path)
        asked = [(entry.point, entry.config) for entry in file.entries]
        plans.append(_plan(str(path), file.problem, asked, device, engine))
    return check_plans(ScanCheck, plans, device, engine)


def check_problems(problems: Sequence[ChunkScan], device: Device, engine: Engine) -> ScanCheck:
    """Compile what the engine runs for the problems: its constants, or all among which it chooses.

    Raises UnsupportedKernel for a release without the kernels.
    """
    kernels = scan_engine(engine).lift(device.target.backend)
    plans = []
    for problem in problems:
        asked = []
        for part in problem.parts:
            about = problem, part, device.target
            own = kernels.constants(*about)
            point = Point(1, part, problem.chunk_size)
            asked += [(point, one) for one in ([own] if own else kernels.listed(*about))]
        name = f"{problem.spec()}: what {engine.name} {engine.version} has"
        plans.append(_plan(name, problem, asked, device, engine))
    return check_plans(ScanCheck, plans, device, engine)


def _plan(
    name: str,
    problem: ChunkScan,
    asked: Sequence[tuple[Point, Config]],
    device: Device,
    engine: Engine,
) -> CheckPlan[ChunkScan]:
    kernels = scan_engine(engine).lift(device.target.backend)
    entries = [
        EntryToCheck(point.part, tokens_of(point), config, Candidate(point, config))
        for point, config in asked
    ]
    about = problem, device.target
    return CheckPlan(name, problem, kernels.binder(*about), entries, kernels.companions(*about))

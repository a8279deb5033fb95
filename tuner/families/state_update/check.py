"""Check whether every entry of config files for state updates compiles and fits on a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.compile import Farm, KernelCompiler
from tuner.compile.environment import triton_for
from tuner.devices.table import Device
from tuner.engines.config_files import read_config_file, read_lenient
from tuner.engines.dispatch import Runs, engine_runs
from tuner.engines.engine import Engine
from tuner.errors import MalformedConfigFile
from tuner.families.state_update.engine import StateEngine, state_engine
from tuner.families.state_update.problem import BATCH_SIZES, StateUpdate, Update
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, compiled_json
from tuner.render import verdicts

FILE_OPTIONS: tuple[str, ...] = ()
EXAMPLE_NAME = "headdim=64,dstate=128,device_name=NVIDIA_L40S,cache_dtype=float32.json"
# Names lack both numbers. The machine code depends on them only where a stride of theirs is no
# multiple of 16.
HEADS, GROUPS = 128, 8


@dataclass(frozen=True)
class CheckedEntry:
    """One entry of one file."""

    file: str  # its path, or what the engine runs without one
    key: int  # sequences times heads
    config: Config
    compiled: Compiled


@dataclass(frozen=True)
class StateFileCheck:
    """The results for every entry of every file."""

    device: Device
    entries: Sequence[CheckedEntry]
    runs: Sequence[Runs] = ()  # what the engine runs for these problems

    @property
    def fits(self) -> bool:
        return all(entry.compiled.ok for entry in self.entries)

    def as_json(self) -> dict[str, Any]:
        """The object that `tuner check --json` prints."""
        return {
            "device": self.device.name,
            "entries": [
                {
                    "file": entry.file,
                    "key": entry.key,
                    "config": dict(entry.config),
                    **compiled_json(entry.compiled, self.device.shared_optin_bytes),
                }
                for entry in self.entries
            ],
            "runs": [runs.as_json() for runs in self.runs],
        }

    def as_text(self) -> str:
        headers = ("key", "M block", "warps", "shared", "limit", "verdict", "detail")
        lines = []
        for file in dict.fromkeys(entry.file for entry in self.entries):
            rows = [
                (
                    entry.key,
                    entry.config.get("BLOCK_SIZE_M"),
                    entry.config.get("num_warps"),
                    entry.compiled.shared_bytes,
                    self.device.shared_optin_bytes,
                    "fits" if entry.compiled.ok else entry.compiled.status.value,
                    entry.compiled.detail,
                )
                for entry in self.entries
                if entry.file == file
            ]
            lines += [file, verdicts(headers, rows, by="key"), ""]
        bad = sum(not entry.compiled.ok for entry in self.entries)
        verdict = f"{bad} cannot run" if bad else "all can run"
        return "\n".join([*lines, f"{len(self.entries)} entries on {self.device.name}: {verdict}"])


def claims(name: str, engine: Engine) -> bool:
    """Whether a name is that of a state update's config file."""
    try:
        state_engine(engine).read_file_name(name)
    except MalformedConfigFile:
        return False
    return True


def check_files(
    files: Sequence[Path], device: Device, engine: Engine, options: Mapping[str, Any]
) -> StateFileCheck:
    """Compile every entry of the files for the device.

    Raises MalformedConfigFile or BadProblem for a file whose name or content is not an engine's,
    and UnsupportedKernel for a version that reads no such files, before it compiles anything.
    """
    states = state_engine(engine)
    return _check([_read(path, states, device) for path in files], device, engine)


def check_problems(
    problems: Sequence[StateUpdate], device: Device, engine: Engine
) -> StateFileCheck:
    """Compile what the engine would run for the problems: its shipped files, or its defaults.

    Raises UnsupportedKernel for a version that reads no such files.
    """
    states = state_engine(engine)
    return _check([_runs(problem, device, states) for problem in problems], device, engine)


@dataclass(frozen=True)
class _Plan:
    file: str
    problem: StateUpdate
    entries: Mapping[int, Config]


def _read(path: Path, states: StateEngine, device: Device) -> _Plan:
    key, fields = states.read_file_name(path.name), states.fields
    # vLLM passes two fields of an entry on and ignores all others.
    more = {n for e in read_lenient(path, fields).entries.values() for n in e} - {*fields.names}
    lenient = replace(fields, names=(*fields.names, *sorted(more)))
    entries = read_config_file(path, lenient).entries
    problem = StateUpdate(HEADS, key.head_dim, key.state_size, GROUPS, cache_dtype=key.cache_dtype)
    states.file_name(problem, device)  # refuses a version without such files
    kept = {n: Config({k: c[k] for k in fields.names}) for n, c in sorted(entries.items())}
    return _Plan(str(path), problem, kept)


def _runs(problem: StateUpdate, device: Device, states: StateEngine) -> _Plan:
    path = states.find_file(states.configs, problem, device)
    name = str(path) if path else f"{problem.spec()}: the default of {states.name} {states.version}"
    entries: dict[int, Config] = {}
    for size in BATCH_SIZES:
        found = states.incumbents(problem, device, size)
        entries[states.file_key(problem, size)] = found.get("shipped", found["default"])
    return _Plan(name, problem, entries)


def _check(plans: Sequence[_Plan], device: Device, engine: Engine) -> StateFileCheck:
    kernels = state_engine(engine).lift(device.target.backend)
    with Farm(triton=triton_for(engine)) as farm:
        entries = [
            entry
            for plan in plans
            for entry in _compiled(
                plan,
                KernelCompiler(farm, kernels.binder(plan.problem, device.target), device),
            )
        ]
    runs = engine_runs(engine.name, engine.version, (plan.problem for plan in plans), device)
    return StateFileCheck(device, entries, runs)


def _compiled(plan: _Plan, compiler: KernelCompiler) -> Iterator[CheckedEntry]:
    """The file's entries; all numbers of sequences share a configuration's kernel."""
    asked = {Candidate(Point(1, Update.STATE), c): c for c in plan.entries.values()}
    compiler.submit(asked)
    found: dict[Config, Compiled] = {}
    while batch := compiler.poll(wait=True):
        found |= {asked[candidate]: result for candidate, result in batch}
    for key, config in plan.entries.items():
        yield CheckedEntry(plan.file, key, config, found[config])

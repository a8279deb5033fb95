"""Check whether every entry of config files for state updates compiles and fits on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.devices.table import Device
from tuner.engines.config_files import read_any_fields
from tuner.engines.engine import Engine
from tuner.families.check import Check, CheckedEntry, CheckPlan, EntryToCheck, check_plans
from tuner.families.state_update.engine import StateEngine, state_engine
from tuner.families.state_update.problem import BATCH_SIZES, StateUpdate, Update
from tuner.problems.points import Candidate, Config, Point

FILE_OPTIONS: tuple[str, ...] = ()
EXAMPLE_NAME = "headdim=64,dstate=128,device_name=NVIDIA_L40S,cache_dtype=float32.json"
# Names lack both numbers. The machine code depends on them only where a stride of theirs is no
# multiple of 16.
HEADS, GROUPS = 128, 8


class StateCheck(Check[CheckedEntry]):
    """The results for every entry. Its size is the file's key: sequences times heads."""

    columns = ("key", "M block", "warps", "shared", "limit")
    by = "key"

    def cells(self, entry: CheckedEntry) -> tuple[object, ...]:
        shared = entry.compiled.shared_bytes if entry.compiled else None
        blocks = (entry.config.get("BLOCK_SIZE_M"), entry.config.get("num_warps"))
        return (entry.size, *blocks, shared, self.device.shared_optin_bytes)

    def fields(self, entry: CheckedEntry) -> dict[str, Any]:
        return {"file": entry.file, "key": entry.size, "config": dict(entry.config)}

    def as_text(self) -> str:
        return "\n".join([*self.tables(), self.closing()])  # the limit is a column


def claims(name: str, engine: Engine) -> bool:
    """Whether a name is that of a state update's config file."""
    return state_engine(engine).claims(name)


def asked_names(problems: Sequence[StateUpdate], device: Device, engine: Engine) -> list[str]:
    """The files for which the engine asks."""
    states = state_engine(engine)
    return [states.file_name(problem, device) for problem in problems]


def check_files(
    files: Sequence[Path], device: Device, engine: Engine, options: Mapping[str, Any]
) -> StateCheck:
    """Compile every entry of the files for the device.

    Raises MalformedConfigFile or BadProblem for a file whose name or content is not an engine's,
    and UnsupportedKernel for a version that reads no such files, before it compiles anything.
    """
    states = state_engine(engine)
    plans = [_plan_of_file(path, states, device) for path in files]
    return check_plans(StateCheck, plans, device, engine)


def check_problems(problems: Sequence[StateUpdate], device: Device, engine: Engine) -> StateCheck:
    """Compile what the engine would run for the problems: its shipped files, or its defaults.

    Raises UnsupportedKernel for a version that reads no such files.
    """
    states = state_engine(engine)
    plans = [_plan_of_problem(problem, states, device) for problem in problems]
    return check_plans(StateCheck, plans, device, engine)


def _plan_of_file(path: Path, states: StateEngine, device: Device) -> CheckPlan[StateUpdate]:
    key, fields = states.read_file_name(path.name), states.fields
    # vLLM passes two fields of an entry on and ignores all others.
    entries = read_any_fields(path, fields).entries
    problem = StateUpdate(HEADS, key.head_dim, key.state_size, GROUPS, cache_dtype=key.cache_dtype)
    states.file_name(problem, device)  # refuses a version without such files
    kept = {n: Config({k: c[k] for k in fields.names}) for n, c in sorted(entries.items())}
    return _plan(str(path), problem, kept, states, device)


def _plan_of_problem(
    problem: StateUpdate, states: StateEngine, device: Device
) -> CheckPlan[StateUpdate]:
    """The file that the engine ships for the problem, else its default."""
    path = states.find_file(states.configs, problem, device)
    name = str(path) if path else f"{problem.spec()}: the default of {states.name} {states.version}"
    entries: dict[int, Config] = {}
    for size in BATCH_SIZES:
        found = states.incumbents(problem, device, size)
        entries[states.file_key(problem, size)] = found.get("shipped", found["default"])
    return _plan(name, problem, entries, states, device)


def _plan(
    name: str,
    problem: StateUpdate,
    entries: Mapping[int, Config],
    states: StateEngine,
    device: Device,
) -> CheckPlan[StateUpdate]:
    """All numbers of sequences share a configuration's kernel."""
    binder = states.lift(device.target.backend).binder(problem, device.target)
    asked = [
        EntryToCheck(Update.STATE, key, config, Candidate(Point(1, Update.STATE), config))
        for key, config in entries.items()
    ]
    return CheckPlan(name, problem, binder, asked)

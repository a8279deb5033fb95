"""Check whether a model's attention kernels compile and fit with an engine's constants."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.compile import Farm
from tuner.devices.table import Device
from tuner.engines.engine import Engine, triton_for
from tuner.families.attention.engine import (
    AttentionEngine,
    Remedy,
    attention_engine,
)
from tuner.families.attention.kernels import AttentionKernels
from tuner.families.attention.problem import Attention, AttentionPart, AttentionPhase
from tuner.families.attention.space import smaller_configs
from tuner.families.check import (
    NO_FLAGS,
    Check,
    CheckedEntry,
    CheckGroup,
    EntryToCheck,
    compile_groups,
    other_kernel,
    reasons_of,
    runs_of,
)
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Status
from tuner.render import folded, table


@dataclass(frozen=True)
class CheckedKernel(CheckedEntry):
    """A kernel as the engine would launch it, compiled for a device."""

    kernel: str = ""
    fits_with: Config | None = None  # if it does not fit: the engine's constants made smaller


@dataclass(frozen=True)
class AttentionCheck(Check[CheckedKernel]):
    """The results for every attention kernel of a model."""

    engine: str = ""  # e.g. "sglang 0.5.16"
    remedy: Remedy | None = None  # if an extend launch does not fit

    columns = ("kernel", "constants", "shared")

    def cells(self, entry: CheckedKernel) -> tuple[object, ...]:
        shared = entry.compiled.shared_bytes if entry.compiled else None
        return (entry.kernel, _text(entry.config), shared)

    def fields(self, entry: CheckedKernel) -> dict[str, Any]:
        return {
            "problem": entry.problem.spec(),
            "part": entry.part.value,
            "kernel": entry.kernel,
            "config": dict(entry.config),
        }

    def entry_json(self, entry: CheckedKernel) -> dict[str, Any]:
        smaller = dict(entry.fits_with) if entry.fits_with else None
        return {**super().entry_json(entry), "fits_with": smaller}

    def as_json(self) -> dict[str, Any]:
        remedy = self.remedy.as_json() if self.remedy else None
        first = {"device": self.device.name, "engine": self.engine}
        return {**first, **super().as_json(), "remedy": remedy}

    def as_text(self) -> str:
        lines = remedy_lines(self.remedy, self.engine) if self.remedy else ()
        return folded(
            "\n".join(
                [*self.tables(), *self.notes, self.device.shared_limit, self.closing(), *lines]
            )
        )

    def table(self, entries: Sequence[CheckedKernel]) -> str:
        rows = [
            (*self.cells(one), one.verdict if one.fits or one.lost else "would crash")
            for one in entries
        ]
        whys = [f"{one.kernel}: {why}" for one in entries if (why := _why(one))]
        return "\n".join([table((*self.columns, "verdict"), rows), *whys])

    def closing(self) -> str:
        verdict = self.counted("would crash", "all fit") if self.entries else "none was checked"
        many = "kernel" if len(self.entries) == 1 else "kernels"
        return f"{len(self.entries)} {many} of {self.engine} on {self.device.name}: {verdict}"


def remedy_lines(remedy: Remedy, engine: str) -> list[str]:
    """Return the steps that an operator can take, a line for each."""
    first, last = remedy.lines
    lines = [f"the constants stand in {remedy.file}, lines {first} to {last}"]
    if remedy.fits_since:
        lines.append(f"sglang {remedy.fits_since} and later choose smaller constants: upgrade, or")
    if remedy.flags:
        lines.append(f"start the server with {' or '.join(remedy.flags)}: another kernel, or")
    if remedy.patched:
        lines.append("add --write-patch FILE: with its patch all fit, and it says how to apply it")
    return [*lines, *remedy.notes]


def check_problems(
    problems: Sequence[Attention],
    device: Device,
    engine: Engine,
    flags: Mapping[str, str] = NO_FLAGS,
) -> AttentionCheck:
    """Compile the kernels that the engine would launch for the problems on the device. `flags` are
    the server's.

    If another library runs a problem, nothing of the problem is compiled, and a note says so.
    Compiled kernels do not depend on the batch, so a single point of each part is enough. Raises
    UnsupportedKernel if the engine has no kernel for a problem.
    """
    attention = attention_engine(engine)
    kernels = attention.lift(device.target.platform)
    run = [_as_the_engine_runs(problem, attention, device) for problem in problems]
    groups = [
        other_kernel(problem, device, engine, flags) or _group(problem, kernels, device)
        for problem in run
    ]
    with Farm(triton=triton_for(engine)) as farm:
        found = compile_groups(farm, groups, device)
        asked = [(group.problem, one.candidate) for group in groups for one in group.entries]
        entries = [
            _checked(farm, kernels, device, problem, candidate, entry)
            for (problem, candidate), entry in zip(asked, found, strict=True)
        ]
        too_large = [one for (one, _), entry in zip(asked, found, strict=True) if _large(entry)]
        remedy = _remedy(farm, attention, device, too_large)
    runs = runs_of(groups, device, engine, flags)
    notes = reasons_of(groups)
    return AttentionCheck(device, entries, runs, notes=notes, engine=kernels.origin, remedy=remedy)


def _group(
    problem: Attention,
    kernels: AttentionKernels,
    device: Device,
    candidates: Sequence[Candidate] = (),
) -> CheckGroup[Attention]:
    """Group the problem's launches, with the engine's default constants unless candidates are
    given.
    """
    target = device.target
    points = [_point(problem, part) for part in problem.parts]
    asked = candidates or [
        Candidate(point, kernels.default_config(problem, point, target)) for point in points
    ]
    entries = [EntryToCheck(one.point.part, one.point.batch_size, one.config, one) for one in asked]
    return CheckGroup(problem.spec(), problem, kernels.binder(problem, target), entries)


def _large(entry: CheckedEntry) -> bool:
    return entry.status == Status.OUT_OF_RESOURCES.value


def _remedy(
    farm: Farm, attention: AttentionEngine, device: Device, too_large: Sequence[Attention]
) -> Remedy | None:
    """Return the remedy for problems whose launch does not fit. If it has a patch, all of them fit
    with it.
    """
    problems = [problem for problem in too_large if problem.phase is AttentionPhase.EXTEND]
    remedy = attention.remedy(device) if problems else None
    if remedy is None or _fit_patched(farm, attention, device, remedy, problems):
        return remedy
    return replace(remedy, patched="")


def fit_patched(
    engine: Engine, device: Device, remedy: Remedy, problems: Sequence[Attention]
) -> bool:
    """Say whether the engine's extend launches for the problems fit with the remedy's patch."""
    with Farm() as farm:
        return _fit_patched(farm, attention_engine(engine), device, remedy, problems)


def _fit_patched(
    farm: Farm,
    attention: AttentionEngine,
    device: Device,
    remedy: Remedy,
    problems: Sequence[Attention],
) -> bool:
    if not remedy.patched:
        return False
    with tempfile.TemporaryDirectory() as folder:
        patched = Path(folder, remedy.file.name)
        patched.write_bytes(remedy.patched.encode("utf-8"))
        kernels = attention.lift(device.target.platform, {AttentionPhase.EXTEND: patched})
        groups = [_group(problem, kernels, device) for problem in problems]
        return all(entry.fits for entry in compile_groups(farm, groups, device))


def _checked(
    farm: Farm,
    kernels: AttentionKernels,
    device: Device,
    problem: Attention,
    default: Candidate | None,
    entry: CheckedEntry,
) -> CheckedKernel:
    assert default is not None  # `_group` gives each entry a candidate
    smaller = None
    if _large(entry):
        less = [Candidate(default.point, config) for config in smaller_configs(default.config)]
        tried = compile_groups(farm, [_group(problem, kernels, device, less)], device)
        smaller = next((one.config for one in tried if one.fits), None)
    kernel = kernels.launch(problem, default.point, device.target).kernel
    return CheckedKernel(**vars(entry), kernel=kernel, fits_with=smaller)


def _as_the_engine_runs(problem: Attention, engine: AttentionEngine, device: Device) -> Attention:
    if not problem.chooses_splits:
        return problem
    return problem.with_room(engine.most_splits(problem, device.sm_count))


def _point(problem: Attention, part: AttentionPart) -> Point:
    decode, prefill = (
        problem.phase is AttentionPhase.DECODE,
        problem.phase is AttentionPhase.PREFILL,
    )
    return Point(1, part, 1 if decode else 128, 0 if prefill else 1024)


def _why(checked: CheckedKernel) -> str:
    if checked.fits:
        return ""
    smaller = checked.fits_with
    return checked.why + (f"; fits with {_text(smaller, checked.config)}" if smaller else "")


def _text(config: Config, beside: Config | None = None) -> str:
    """Return the constants in words; with `beside`, only the constants that differ from it."""
    shown = [item for item in config.items() if not beside or item not in beside.items()]
    return ", ".join(f"{name} {value}" for name, value in shown)

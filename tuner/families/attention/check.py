"""Check whether a model's attention kernels compile and fit with an engine's constants."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.compile import CompileJob, Farm
from tuner.compile.candidates import fit
from tuner.compile.environment import triton_for
from tuner.devices.table import Device
from tuner.engines.dispatch import Runs, engine_runs
from tuner.engines.engine import Engine
from tuner.families.attention.engine import (
    AttentionEngine,
    AttentionKernels,
    Remedy,
    attention_engine,
)
from tuner.families.attention.problem import Attention, Phase, Stage
from tuner.families.attention.space import smaller_configs
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, Status
from tuner.render import folded, table


@dataclass(frozen=True)
class CheckedKernel:
    """One kernel as the engine would launch it, compiled for a device."""

    problem: Attention
    stage: Stage
    kernel: str
    config: Config
    compiled: Compiled
    fits_with: Config | None  # if it does not fit: the engine's constants made smaller


@dataclass(frozen=True)
class AttentionCheck:
    """The results for every attention kernel of a model."""

    device: Device
    engine: str  # e.g. "sglang 0.5.16"
    kernels: Sequence[CheckedKernel]
    runs: Sequence[Runs] = ()  # what the engine runs for these problems
    remedy: Remedy | None = None  # what helps, where an extend launch does not fit

    @property
    def fits(self) -> bool:
        return all(kernel.compiled.ok for kernel in self.kernels)

    def as_json(self) -> dict[str, Any]:
        """The object that `tuner check --attention --json` prints."""
        return {
            "device": self.device.name,
            "engine": self.engine,
            "entries": [
                {
                    "problem": checked.problem.spec(),
                    "part": checked.stage.value,
                    "kernel": checked.kernel,
                    "config": dict(checked.config),
                    "shared_bytes": checked.compiled.shared_bytes,
                    "limit_bytes": self.device.shared_optin_bytes,
                    "fits": checked.compiled.ok,
                    "status": checked.compiled.status.value,
                    "detail": checked.compiled.detail,
                    "fits_with": dict(checked.fits_with) if checked.fits_with else None,
                }
                for checked in self.kernels
            ],
            "runs": [runs.as_json() for runs in self.runs],
            "remedy": self.remedy.as_json() if self.remedy else None,
        }

    def as_text(self) -> str:
        lines = []
        for problem in dict.fromkeys(checked.problem for checked in self.kernels):
            mine = [checked for checked in self.kernels if checked.problem == problem]
            lines += [problem.spec(), self._table(mine)]
            lines += [f"{one.kernel}: {why}" for one in mine if (why := _why(one))]
            lines.append("")
        bad = sum(not checked.compiled.ok for checked in self.kernels)
        verdict = f"{bad} would crash" if bad else "all fit"
        lines.append(self.device.shared_limit)
        many = "kernel" if len(self.kernels) == 1 else "kernels"
        lines.append(
            f"{len(self.kernels)} {many} of {self.engine} on {self.device.name}: {verdict}"
        )
        lines += remedy_lines(self.remedy, self.engine) if self.remedy else ()
        return folded("\n".join(lines))

    def _table(self, kernels: Sequence[CheckedKernel]) -> str:
        rows = [
            (
                checked.kernel,
                _text(checked.config),
                checked.compiled.shared_bytes,
                "fits" if checked.compiled.ok else "would crash",
            )
            for checked in kernels
        ]
        return table(("kernel", "constants", "shared", "verdict"), rows)


def remedy_lines(remedy: Remedy, engine: str) -> list[str]:
    """What an operator can do, one step a line."""
    first, last = remedy.lines
    lines = [f"the constants stand in {remedy.file}, lines {first} to {last}"]
    if remedy.fits_since:
        lines.append(f"sglang {remedy.fits_since} and later choose smaller ones: upgrade, or")
    if remedy.flags:
        lines.append(f"start the server with {' or '.join(remedy.flags)}: another kernel, or")
    if remedy.patched:
        lines.append(
            f"add --write-patch FILE, then: patch -p1 -d {remedy.root} < FILE (with it, all fit)"
        )
    return [*lines, *remedy.notes]


def check_problems(problems: Sequence[Attention], device: Device, engine: Engine) -> AttentionCheck:
    """Compile the kernels that the engine would launch for the problems on the device.

    Compiled kernels do not depend on the batch, so one point of each stage is enough. Raises
    UnsupportedKernel if the engine has no kernel for a problem.
    """
    attention = attention_engine(engine)
    kernels = attention.lift(device.target.backend)
    problems = [_as_the_engine_runs(problem, attention, device) for problem in problems]
    defaults = [
        (problem, Candidate(point, kernels.default_config(problem, point, device.target)))
        for problem in problems
        for point in (_point(problem, stage) for stage in problem.parts)
    ]
    with Farm(triton=triton_for(engine)) as farm:
        found = _compile(farm, kernels, device, defaults)
        checked = [
            _checked(farm, kernels, device, asked, compiled)
            for asked, compiled in zip(defaults, found, strict=True)
        ]
        too_large = [
            asked for asked, compiled in zip(defaults, found, strict=True) if _too_large(compiled)
        ]
        remedy = _remedy(farm, attention, device, too_large)
    runs = engine_runs(engine.name, engine.version, problems, device)
    return AttentionCheck(device, kernels.origin, checked, runs, remedy)


_Asked = tuple[Attention, Candidate]


def _too_large(compiled: Compiled) -> bool:
    return compiled.status is Status.OUT_OF_RESOURCES


def _remedy(
    farm: Farm, attention: AttentionEngine, device: Device, too_large: Sequence[_Asked]
) -> Remedy | None:
    """What helps for the launches that do not fit. With its patch, all of them fit."""
    problems = [problem for problem, _ in too_large if problem.phase is Phase.EXTEND]
    remedy = attention.remedy(device) if problems else None
    if remedy is None or _fit_patched(farm, attention, device, remedy, problems):
        return remedy
    return replace(remedy, patched="")


def fit_patched(
    engine: Engine, device: Device, remedy: Remedy, problems: Sequence[Attention]
) -> bool:
    """Whether the engine's extend launches for the problems fit with the remedy's patch."""
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
        kernels = attention.lift(device.target.backend, {Phase.EXTEND: patched})
        points = [(problem, _point(problem, Stage.EXTEND)) for problem in problems]
        asked = [
            (problem, Candidate(point, kernels.default_config(problem, point, device.target)))
            for problem, point in points
        ]
        return all(compiled.ok for compiled in _compile(farm, kernels, device, asked))


def _checked(
    farm: Farm, kernels: AttentionKernels, device: Device, asked: _Asked, compiled: Compiled
) -> CheckedKernel:
    problem, default = asked
    smaller = None
    if _too_large(compiled):
        tries = [
            (problem, Candidate(default.point, config))
            for config in smaller_configs(default.config)
        ]
        results = zip(tries, _compile(farm, kernels, device, tries), strict=True)
        smaller = next((less.config for (_, less), result in results if result.ok), None)
    assert isinstance(default.point.part, Stage)  # the problem is attention
    kernel = kernels.launch(problem, default.point, device.target).kernel
    return CheckedKernel(problem, default.point.part, kernel, default.config, compiled, smaller)


def _compile(
    farm: Farm, kernels: AttentionKernels, device: Device, asked: Sequence[_Asked]
) -> list[Compiled]:
    """The compiled kernels, in the order of `asked`."""
    jobs = []
    for problem, candidate in asked:
        binding = kernels.bind(problem, candidate.point, candidate.config, device.target)
        jobs.append(CompileJob(kernels.lifted(problem.phase), binding.variant(), device.target))
    farm.submit(jobs)
    results = dict(farm.completed())
    return [fit(results[job], device.shared_optin_bytes) for job in jobs]


def _as_the_engine_runs(problem: Attention, engine: AttentionEngine, device: Device) -> Attention:
    if not problem.chooses_splits:
        return problem
    return problem.with_room(engine.most_splits(problem, device.sm_count))


def _point(problem: Attention, stage: Stage) -> Point:
    decode, prefill = problem.phase is Phase.DECODE, problem.phase is Phase.PREFILL
    return Point(1, stage, 1 if decode else 128, 0 if prefill else 1024)


def _why(checked: CheckedKernel) -> str:
    if checked.compiled.ok:
        return ""
    smaller = checked.fits_with
    cure = f"; fits with {_text(smaller, checked.config)}" if smaller else ""
    return checked.compiled.detail + cure


def _text(config: Config, beside: Config | None = None) -> str:
    """The constants in words; with `beside`, only the ones that differ from it."""
    shown = [item for item in config.items() if not beside or item not in beside.items()]
    return ", ".join(f"{name} {value}" for name, value in shown)

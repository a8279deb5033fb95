"""An engine's own constants for a model's attention -> does every kernel compile and fit?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.compile import CompileJob, Farm
from tuner.compile.candidates import fit
from tuner.devices.table import Device
from tuner.engines.engine import Engine
from tuner.families.attention.engine import AttentionKernels, attention_engine
from tuner.families.attention.problem import Attention, Phase, Stage
from tuner.families.attention.space import lesser
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, Status
from tuner.render import table


@dataclass(frozen=True)
class CheckedKernel:
    """One kernel as the engine would launch it, compiled for a device."""

    problem: Attention
    stage: Stage
    kernel: str
    config: Config
    compiled: Compiled
    fits_with: Config | None  # of those that do not fit: the engine's constants, made smaller


@dataclass(frozen=True)
class AttentionCheck:
    """Every attention kernel of a model."""

    device: Device
    engine: str  # e.g. "sglang 0.5.16"
    kernels: Sequence[CheckedKernel]

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
        }

    def as_text(self) -> str:
        rows = [
            (
                checked.problem.spec(),
                checked.kernel,
                _text(checked.config),
                checked.compiled.shared_bytes,
                self.device.shared_optin_bytes,
                "fits" if checked.compiled.ok else "would crash",
                _why(checked),
            )
            for checked in self.kernels
        ]
        headers = ("problem", "kernel", "config", "shared", "limit", "verdict", "detail")
        bad = sum(not checked.compiled.ok for checked in self.kernels)
        verdict = f"{bad} would crash" if bad else "all fit"
        many = "kernel" if len(rows) == 1 else "kernels"
        where = f"{len(rows)} {many} of {self.engine} on {self.device.name}"
        return f"{table(headers, rows)}\n\n{where}: {verdict}"


def check_problems(problems: Sequence[Attention], device: Device, engine: Engine) -> AttentionCheck:
    """Compile what the engine would launch for the problems on the device.

    What is compiled does not depend on the batch, so one point of each stage stands for all.
    Raises UnsupportedKernel where the engine has nothing for a problem.
    """
    kernels = attention_engine(engine).lift(device.target.backend)
    own = [
        (problem, Candidate(point, kernels.default_config(problem, point, device.target)))
        for problem in problems
        for point in (_point(problem, stage) for stage in problem.parts)
    ]
    with Farm() as farm:
        found = _compile(farm, kernels, device, own)
        checked = [
            _checked(farm, kernels, device, asked, compiled)
            for asked, compiled in zip(own, found, strict=True)
        ]
    return AttentionCheck(device, kernels.origin, checked)


_Asked = tuple[Attention, Candidate]


def _checked(
    farm: Farm, kernels: AttentionKernels, device: Device, asked: _Asked, compiled: Compiled
) -> CheckedKernel:
    problem, own = asked
    smaller = None
    if compiled.status is Status.OUT_OF_RESOURCES:
        tries = [(problem, Candidate(own.point, config)) for config in lesser(own.config)]
        results = zip(tries, _compile(farm, kernels, device, tries), strict=True)
        smaller = next((less.config for (_, less), result in results if result.ok), None)
    assert isinstance(own.point.part, Stage)  # the problem is attention
    kernel = kernels.launch(problem, own.point, device.target).kernel
    return CheckedKernel(problem, own.point.part, kernel, own.config, compiled, smaller)


def _compile(
    farm: Farm, kernels: AttentionKernels, device: Device, asked: Sequence[_Asked]
) -> list[Compiled]:
    """All of them, in order."""
    jobs = []
    for problem, candidate in asked:
        binding = kernels.bind(problem, candidate.point, candidate.config, device.target)
        jobs.append(CompileJob(kernels.lifted(problem.phase), binding.variant(), device.target))
    farm.submit(jobs)
    results = dict(farm.completed())
    return [fit(results[job], device.shared_optin_bytes) for job in jobs]


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
    """The constants in words; those alone that differ from another's."""
    return ", ".join(f"{name} {value}" for name, value in _differing(config, beside))


def _differing(config: Config, beside: Config | None) -> Iterator[tuple[str, int]]:
    return (
        (name, value) for name, value in config.items() if not beside or beside.get(name) != value
    )

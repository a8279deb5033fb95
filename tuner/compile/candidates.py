"""Candidates of one problem on one device, compiled on a farm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from tuner.compile.farm import Farm, Job
from tuner.devices.table import Device
from tuner.kernels.binding import Binding
from tuner.kernels.lift import Lifted
from tuner.problems.points import Candidate
from tuner.problems.results import Compiled, Status

# The kernel that a candidate launches, and what its parameters are bound to. Raises
# UnsupportedKernel for a config that the engine's kernel does not take.
Binder = Callable[[Candidate], tuple[Lifted, Binding]]


class Compiler(Protocol):
    """Compiles candidates; the caller takes the results as they come."""

    def submit(self, candidates: Iterable[Candidate]) -> None:
        """Queue candidates; never waits for a compile."""

    def poll(self, wait: bool) -> list[tuple[Candidate, Compiled]]:
        """What is finished and not yet taken; with `wait`, at least one where any is pending."""

    @property
    def compiled_count(self) -> int:
        """Kernels compiled so far, good or bad; what a cache answered is not counted."""

    @property
    def compile_s(self) -> float:
        """What that took, summed over the processes."""


class KernelCompiler:
    """A `Compiler` for what `bind` binds. The farm is the caller's, to share and to close."""

    def __init__(self, farm: Farm, bind: Binder, device: Device) -> None:
        self._farm, self._bind, self._device = farm, bind, device
        self._pending: dict[Job, Candidate] = {}

    def submit(self, candidates: Iterable[Candidate]) -> None:
        """Raises UnsupportedKernel for a config that the engine's kernel does not take."""
        jobs = {self._job(candidate): candidate for candidate in candidates}
        self._pending |= jobs
        self._farm.submit(jobs)

    def poll(self, wait: bool) -> list[tuple[Candidate, Compiled]]:
        limit = self._device.shared_optin_bytes
        return [(self._pending.pop(job), fit(c, limit)) for job, c in self._farm.poll(wait)]

    @property
    def compiled_count(self) -> int:
        return self._farm.compiled

    @property
    def compile_s(self) -> float:
        return self._farm.compile_s

    def _job(self, candidate: Candidate) -> Job:
        lifted, binding = self._bind(candidate)
        return Job(lifted, binding.variant(), self._device.target)


def fit(compiled: Compiled, shared_limit_bytes: int) -> Compiled:
    """The same result, out of resources where it passes a device's limit a block."""
    needed = compiled.shared_bytes
    if not compiled.ok or needed is None or needed <= shared_limit_bytes:
        return compiled
    detail = f"needs {needed:,} bytes of shared memory, limit {shared_limit_bytes:,}"
    return replace(compiled, status=Status.OUT_OF_RESOURCES, detail=detail)

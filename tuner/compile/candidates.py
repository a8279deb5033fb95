"""Compile the candidates of one problem for one device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from tuner.compile.farm import CompileJob, Farm
from tuner.devices.table import Device
from tuner.kernels.binding import Binding
from tuner.kernels.lift import Lifted
from tuner.problems.points import Candidate
from tuner.problems.results import Compiled, Status

# Gives the kernel that a candidate launches, and the binding of its parameters. Raises
# UnsupportedKernel for a config that the engine's kernel does not take.
Binder = Callable[[Candidate], tuple[Lifted, Binding]]


class Compiler(Protocol):
    """Compiles candidates in the background."""

    def submit(self, candidates: Iterable[Candidate]) -> None:
        """Queue candidates; never waits for a compile."""

    def poll(self, wait: bool) -> list[tuple[Candidate, Compiled]]:
        """Results since the last call; with `wait`, at least one where any is pending."""

    @property
    def compiled_count(self) -> int:
        """Kernels compiled so far, including failures but not results from a cache."""

    @property
    def compile_s(self) -> float:
        """Seconds of compiling, summed over the processes."""


class KernelCompiler:
    """A `Compiler` of the kernels that `bind` gives. The caller closes the farm."""

    def __init__(self, farm: Farm, bind: Binder, device: Device) -> None:
        self._farm, self._bind, self._device = farm, bind, device
        self._pending: dict[CompileJob, Candidate] = {}

    def submit(self, candidates: Iterable[Candidate]) -> None:
        """Queue candidates. Raises UnsupportedKernel for a config that the kernel does not take."""
        jobs = {}
        for candidate in candidates:
            lifted, binding = self._bind(candidate)
            jobs[CompileJob(lifted, binding.variant(), self._device.target)] = candidate
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


def fit(compiled: Compiled, shared_limit_bytes: int) -> Compiled:
    """The result, as OUT_OF_RESOURCES where a block needs more shared memory than the limit."""
    needed = compiled.shared_bytes
    if not compiled.ok or needed is None or needed <= shared_limit_bytes:
        return compiled
    detail = f"needs {needed:,} bytes of shared memory, limit {shared_limit_bytes:,}"
    return replace(compiled, status=Status.OUT_OF_RESOURCES, detail=detail)

"""Compile the candidates of a problem for a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tuner.compile.farm import CompileJob, Farm
from tuner.devices.table import Device
from tuner.errors import UnsupportedKernel
from tuner.kernels.binding import Binding
from tuner.kernels.lift import Lifted
from tuner.problems.points import Candidate
from tuner.problems.results import Compiled

# Gives the kernel that a candidate launches, and the binding of its parameters. Raises
# UnsupportedKernel for a config that the engine's kernel does not take.
Binder = Callable[[Candidate], tuple[Lifted, Binding]]
# The further kernels that a candidate launches besides its binder's, such as a reduction.
Companions = Callable[[Candidate], Sequence[tuple[Lifted, Binding]]]


@dataclass(eq=False)
class _Asked:
    """A candidate whose kernels are being compiled, its own kernel first."""

    candidate: Candidate
    jobs: list[CompileJob]
    results: dict[CompileJob, Compiled] = field(default_factory=dict)

    def result(self, shared_limit_bytes: int) -> Compiled:
        """Return the candidate's own result, or that of the first companion that cannot run."""
        found = [self.results[job].within(shared_limit_bytes) for job in self.jobs]
        own, *others = found
        return next((other for other in others if own.ok and not other.ok), own)


class _Counts(NamedTuple):
    """The counts of a farm."""

    compiled: int
    cached: int
    compile_s: float


class KernelCompiler:
    """Compiles the kernels that `bind` returns, in the background. The caller closes the farm.

    A farm may serve several compilers in turn. Each counts its own kernels.
    """

    def __init__(
        self, farm: Farm, bind: Binder, device: Device, companions: Companions | None = None
    ) -> None:
        """Take the farm. `companions`: kernels compiled along; a candidate waits for them."""
        self._farm, self._bind, self._device = farm, bind, device
        self._companions = companions
        self._pending: dict[CompileJob, _Asked] = {}
        self._before: _Counts | None = None  # at the first submit

    def submit(self, candidates: Iterable[Candidate]) -> None:
        """Queue candidates. Raises UnsupportedKernel for a config that the kernel does not take."""
        self._before = self._before or self._counts
        jobs = {}
        for candidate in candidates:
            mine = self._jobs(self._kernels(candidate))
            jobs.update(dict.fromkeys(mine, _Asked(candidate, mine)))
        self._pending |= jobs
        self._farm.submit(jobs)

    def refusal(self, candidate: Candidate) -> str:
        """Say why the kernel does not take a candidate's configuration; "" if it does."""
        try:
            self._kernels(candidate)
        except UnsupportedKernel as error:
            return str(error)
        return ""

    def compile_ahead(self, candidates: Iterable[Candidate]) -> None:
        """Compile candidates that will probably be submitted; see `Farm.compile_ahead`."""
        self._farm.compile_ahead(job for c in candidates for job in self._jobs(self._kernels(c)))

    def _kernels(self, candidate: Candidate) -> list[tuple[Lifted, Binding]]:
        further = self._companions(candidate) if self._companions is not None else ()
        return [self._bind(candidate), *further]

    def _jobs(self, kernels: Sequence[tuple[Lifted, Binding]]) -> list[CompileJob]:
        return [CompileJob(k, binding.variant(), self._device.target) for k, binding in kernels]

    def poll(self, wait: bool) -> list[tuple[Candidate, Compiled]]:
        """Return the results since the last call; with `wait`, at least one if any is pending."""
        ready: list[tuple[Candidate, Compiled]] = []
        wait = wait and bool(self._pending)
        finished = self._farm.poll(wait)
        while finished:
            for job, compiled in finished:
                asked = self._pending.pop(job, None)  # None: an earlier run gave up on it
                if asked is None:
                    continue
                asked.results[job] = compiled
                if len(asked.results) == len(asked.jobs):
                    ready.append((asked.candidate, asked.result(self._device.shared_optin_bytes)))
            finished = self._farm.poll(wait) if wait and not ready else []
        return ready

    @property
    def compiled_count(self) -> int:
        """Return how many kernels were compiled so far, also failures, but no cached results."""
        return self._farm.compiled - (self._before or self._counts).compiled

    @property
    def cached_count(self) -> int:
        """Return how many results came from a cache, or from another candidate's compile."""
        return self._farm.cached - (self._before or self._counts).cached

    @property
    def compile_s(self) -> float:
        """Return the seconds of compiling, summed over the processes."""
        return self._farm.compile_s - (self._before or self._counts).compile_s

    @property
    def waits(self) -> bool:
        """Return `Farm.waits`."""
        return self._farm.waits

    @property
    def _counts(self) -> _Counts:
        farm = self._farm
        return _Counts(farm.compiled, farm.cached, farm.compile_s)

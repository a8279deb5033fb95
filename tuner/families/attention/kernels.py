"""Define the attention kernels of an engine. A server's plugin uses them, so this module is
light.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from tuner.devices.target import Target
from tuner.families.attention.problem import Attention, AttentionPhase
from tuner.families.attention.splits import launched
from tuner.kernels.binding import Binding
from tuner.kernels.launcher import KernelLaunch
from tuner.kernels.lift import Lifted
from tuner.problems.points import Candidate, Config, Point


class AttentionKernels(ABC):
    """The attention kernels of an engine version, launched as its own launchers do.

    All methods may raise UnsupportedKernel.
    """

    origin: str  # the engine and its version, for messages

    @abstractmethod
    def lifted(self, phase: AttentionPhase) -> Lifted: ...

    @abstractmethod
    def default_config(self, problem: Attention, point: Point, target: Target) -> Config:
        """Return the engine's default constants at a point."""

    @abstractmethod
    def bind(self, problem: Attention, point: Point, config: Config, target: Target) -> Binding:
        """Return the kernel and its arguments at a point, with a config's constants."""

    @abstractmethod
    def grid(
        self, problem: Attention, point: Point, config: Config, target: Target
    ) -> tuple[int, ...]:
        """Return the grid that the engine launches at a point with a config's constants, in
        blocks.
        """

    @abstractmethod
    def launch(self, problem: Attention, point: Point, target: Target) -> KernelLaunch:
        """Return the engine's launch for a point's part."""

    @abstractmethod
    def arguments(self, problem: Attention, point: Point, target: Target) -> dict[str, Any]:
        """Return the arguments of the engine's launcher at a point, by parameter name."""

    @property
    def hash(self) -> str:
        """Return the sha256 of the lifted source of all kernels."""
        parts = [self.lifted(phase).hash for phase in AttentionPhase]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def binder(
        self, problem: Attention, target: Target
    ) -> Callable[[Candidate], tuple[Lifted, Binding]]:
        """Return `bind` as a function of a candidate, with the room of its launch, for the
        compiler.
        """

        def bound(candidate: Candidate) -> tuple[Lifted, Binding]:
            with_room, constants = launched(problem, candidate.config)
            binding = self.bind(with_room, candidate.point, constants, target)
            return self.lifted(problem.phase), binding

        return bound

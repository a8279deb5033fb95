"""The interface of an engine whose attention can be tuned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tuner.devices.target import CUDA, Target
from tuner.engines.engine import Engine, engine_module
from tuner.families.attention.problem import Attention, Phase
from tuner.families.attention.splits import with_splits
from tuner.kernels.binding import Binding
from tuner.kernels.launcher import Launch
from tuner.kernels.lift import Lifted
from tuner.problems.points import Candidate, Config, Point


class AttentionKernels(Protocol):
    """The attention kernels of one engine version, launched as its own launchers do.

    All methods may raise UnsupportedKernel.
    """

    @property
    def origin(self) -> str:
        """The engine and its version, for messages."""
        ...

    @property
    def hash(self) -> str:
        """The sha256 of the lifted source of all kernels."""
        ...

    def lifted(self, phase: Phase) -> Lifted: ...

    def default_config(self, problem: Attention, point: Point, target: Target) -> Config:
        """The engine's default constants at a point."""
        ...

    def bind(self, problem: Attention, point: Point, config: Config, target: Target) -> Binding:
        """The kernel and its arguments at a point, with a config's constants."""
        ...

    def binder(
        self, problem: Attention, target: Target
    ) -> Callable[[Candidate], tuple[Lifted, Binding]]:
        """`bind` as a function of a candidate, for the compiler."""
        ...

    def grid(
        self, problem: Attention, point: Point, config: Config, target: Target
    ) -> tuple[int, ...]:
        """The grid that the engine launches at a point with a config's constants, in blocks."""
        ...

    def launch(self, problem: Attention, point: Point, target: Target) -> Launch:
        """The engine's launch for a point's stage."""
        ...

    def arguments(self, problem: Attention, point: Point, target: Target) -> dict[str, Any]:
        """The arguments of the engine's launcher at a point, by parameter name."""
        ...


class AttentionEngine(Protocol):
    """The attention of one engine version on disk."""

    def lift(self, backend: str = CUDA) -> AttentionKernels:
        """The kernels for a backend, "cuda" or "hip". Using them may raise UnsupportedKernel."""
        ...

    def file_name(self, problem: Attention, device_name: str) -> str:
        """The name of the file for a problem's tuned constants."""
        ...

    def most_splits(self, problem: Attention, sm_count: int) -> int:
        """The most parts that the engine's own rule makes of a cache at decode."""
        ...

    @property
    def takes_splits(self) -> bool:
        """Whether a running engine can be given other numbers of parts than its own."""
        ...


def attention_engine(engine: Engine) -> AttentionEngine:
    """The attention of an engine. Raises UnsupportedFamily if it cannot be tuned."""
    found: AttentionEngine = engine_module(engine.name, "attention").open_family(engine)
    return found


def engine_config(
    kernels: AttentionKernels, problem: Attention, point: Point, target: Target, room: int
) -> Config:
    """The engine's own constants at a point, with its own rule where the problem chooses splits.

    `room`: the engine's `most_splits`.
    """
    if not problem.chooses_splits:
        return kernels.default_config(problem, point, target)
    constants = kernels.default_config(problem.with_room(room), point, target)
    return with_splits(constants, 0, room)

"""What tuning attention asks of an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tuner.devices.target import CUDA, Target
from tuner.engines.engine import Engine, engine_module
from tuner.families.attention.problem import Attention, Phase
from tuner.kernels.binding import Binding
from tuner.kernels.launcher import Launch
from tuner.kernels.lift import Lifted
from tuner.problems.points import Candidate, Config, Point


class AttentionKernels(Protocol):
    """The attention kernels of one engine version, as its own launchers launch them.

    Any method may raise UnsupportedKernel.
    """

    @property
    def origin(self) -> str:
        """The engine and its version, for messages."""
        ...

    @property
    def hash(self) -> str:
        """The kernels' identity: sha256 of all that is lifted."""
        ...

    def lifted(self, phase: Phase) -> Lifted: ...

    def default_config(self, problem: Attention, point: Point, target: Target) -> Config:
        """The engine's own constants at a point."""
        ...

    def bind(self, problem: Attention, point: Point, config: Config, target: Target) -> Binding:
        """The kernel and its arguments at a point, with a config's constants."""
        ...

    def binder(
        self, problem: Attention, target: Target
    ) -> Callable[[Candidate], tuple[Lifted, Binding]]:
        """`bind` for the candidates of one problem, as a compiler wants it."""
        ...

    def grid(
        self, problem: Attention, point: Point, config: Config, target: Target
    ) -> tuple[int, ...]:
        """The blocks that the engine launches at a point, with a config's constants."""
        ...

    def launch(self, problem: Attention, point: Point, target: Target) -> Launch:
        """What the engine launches for a point's stage."""
        ...

    def arguments(self, problem: Attention, point: Point, target: Target) -> dict[str, Any]:
        """What the engine's launcher is called with at a point, by its parameters' names."""
        ...


class AttentionEngine(Protocol):
    """The attention of one engine version on disk."""

    def lift(self, backend: str = CUDA) -> AttentionKernels:
        """Its kernels on a backend, "cuda" or "hip"; using them may raise UnsupportedKernel."""
        ...

    def file_name(self, problem: Attention, device_name: str) -> str:
        """The name of the file that tuned constants go into."""
        ...


def attention_engine(engine: Engine) -> AttentionEngine:
    """The attention of an engine. Raises UnsupportedFamily where it has none here."""
    found: AttentionEngine = engine_module(engine.name, "attention").open_family(engine)
    return found

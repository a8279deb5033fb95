"""The interface of an engine whose Mamba-2 state update can be tuned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tuner.devices.table import Device
from tuner.devices.target import CUDA, Target
from tuner.engines.config_files import EntryFields
from tuner.engines.engine import Engine, engine_module
from tuner.families.state_update.problem import StateUpdate
from tuner.kernels.binding import Binding
from tuner.kernels.lift import Lifted
from tuner.problems.points import Candidate, Config


@dataclass(frozen=True)
class FileKey:
    """The facts in the name of an engine's config file."""

    head_dim: int
    state_size: int
    device: str  # as the driver names it, "_" for " "
    cache_dtype: str  # float32, or float16 for both 16-bit types


@dataclass(frozen=True)
class ShippedFile:
    """A config file that the engine ships."""

    path: Path
    key: FileKey
    entries: Mapping[int, Config]  # by the file's own keys, in its order; empty if unreadable
    oddities: tuple[str, ...]  # faults for which a strict reading refuses the file


@dataclass(frozen=True)
class StateLaunch:
    """The kernel of a state update, with the grid that the engine launches it with.

    The operands are state (slots, heads, head_dim, state_size), x, dt and out (sequences, heads,
    head_dim), A (heads, head_dim, state_size), B and C (sequences, groups, state_size), D and
    dt_bias (heads, head_dim), and indices (sequences, 1), the slot of each sequence.
    """

    binding: Binding
    grid: tuple[int, ...]


class StateKernels(Protocol):
    """The kernel of one engine version, launched as its own launcher does.

    All methods may raise UnsupportedKernel.
    """

    @property
    def hash(self) -> str:
        """The sha256 of the lifted source."""
        ...

    @property
    def lifted(self) -> Lifted: ...

    def launch(
        self, problem: StateUpdate, batch_size: int, config: Config, target: Target
    ) -> StateLaunch:
        """What the engine launches for a number of sequences, with one new token each."""
        ...

    def binder(
        self, problem: StateUpdate, target: Target
    ) -> Callable[[Candidate], tuple[Lifted, Binding]]:
        """`launch` as a function of a candidate, for the compiler."""
        ...


class StateEngine(Protocol):
    """The Mamba-2 state update of one engine version on disk.

    All methods may raise UnsupportedKernel, as of a version that reads no files for it.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def configs(self) -> Path:
        """The folder of the files that the engine ships."""
        ...

    @property
    def fields(self) -> EntryFields:
        """The fields of an entry, for `config_files.read_config_file`."""
        ...

    def file_name(self, problem: StateUpdate, device: Device) -> str:
        """The name that the engine looks for."""
        ...

    def read_file_name(self, name: str) -> FileKey:
        """Read a file's name. Raises MalformedConfigFile if the engine never looks for it."""
        ...

    def find_file(self, folder: Path, problem: StateUpdate, device: Device) -> Path | None:
        """The file that the engine's loader reads if its variable names `folder`."""
        ...

    def file_key(self, problem: StateUpdate, batch_size: int) -> int:
        """The number for which the loader picks an entry."""
        ...

    def pick(self, entries: Mapping[int, Config], problem: StateUpdate, batch_size: int) -> Config:
        """The entry that the engine runs for a number of sequences. `entries` has some."""
        ...

    def incumbents(
        self, problem: StateUpdate, device: Device, batch_size: int, folder: Path | None = None
    ) -> dict[str, Config]:
        """What the engine runs: "default", and "shipped" where its loader finds a file."""
        ...

    def shipped(self) -> Iterator[ShippedFile]:
        """The files that the engine ships, sorted by path."""
        ...

    def lift(self, backend: str = CUDA) -> StateKernels:
        """The kernel for a backend, "cuda" or "hip"."""
        ...


def state_engine(engine: Engine) -> StateEngine:
    """The state update of an engine. Raises UnsupportedFamily if it cannot be tuned."""
    found: StateEngine = engine_module(engine.name, "state_update").open_family(engine)
    return found

"""What an engine whose Mamba-2 state update can be tuned has to give, and what it inherits."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from tuner.devices.target import Target
from tuner.engines import file_engine
from tuner.engines.config_files import EntryFields
from tuner.engines.engine import Engine, engine_module
from tuner.engines.file_engine import PointwiseFiles
from tuner.families.state_update.problem import BATCH_SIZES, StateUpdate
from tuner.kernels.binding import Binding, FamilyKernels
from tuner.problems.points import Candidate, Config


@dataclass(frozen=True)
class StateUpdateFileKey(file_engine.FileKey):
    """The facts in the name of an engine's config file."""

    head_dim: int
    state_size: int
    device: str  # as the driver names it, "_" for " "
    cache_dtype: str  # float32, or float16 for both 16-bit types


ShippedFile = file_engine.ShippedFile[StateUpdateFileKey]


@dataclass(frozen=True)
class StateLaunch:
    """The kernel of a state update, with the grid that the engine launches it with.

    The operands are state (slots, heads, head_dim, state_size), x, dt and out (sequences, heads,
    head_dim), A (heads, head_dim, state_size), B and C (sequences, groups, state_size), D and
    dt_bias (heads, head_dim), and indices (sequences, 1), the slot of each sequence.
    """

    binding: Binding
    grid: tuple[int, ...]


class StateKernels(FamilyKernels):
    """The kernel of one engine version, launched as its own launcher does."""

    @abstractmethod
    def launch(
        self, problem: StateUpdate, batch_size: int, config: Config, target: Target
    ) -> StateLaunch:
        """What the engine launches for a number of sequences, with one new token each."""

    def bound(self, problem: StateUpdate, candidate: Candidate, target: Target) -> Binding:
        size, config = candidate.point.batch_size, candidate.config
        return self.launch(problem, size, config, target).binding


@dataclass(frozen=True)
class StateEngine(PointwiseFiles[StateUpdate, StateUpdateFileKey, StateKernels]):
    """The Mamba-2 state update of one engine version on disk."""

    grid = BATCH_SIZES

    @property
    @abstractmethod
    def fields(self) -> EntryFields:
        """The fields of an entry, for `config_files.read_config_file`."""

    def fields_of(self, key: StateUpdateFileKey) -> EntryFields:
        return self.fields


def state_engine(engine: Engine) -> StateEngine:
    """The state update of an engine. Raises UnsupportedFamily if it cannot be tuned."""
    found: StateEngine = engine_module(engine.name, "state_update").open_family(engine)
    return found

"""The interface of an engine whose fused-MoE layers can be tuned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tuner.devices.table import Device
from tuner.devices.target import CUDA, Target
from tuner.engines.config_files import EntryFields
from tuner.engines.engine import Engine, engine_module
from tuner.families.fused_moe.problem import FusedMoe, Gemm, gemm_of
from tuner.kernels.binding import Binding
from tuner.kernels.lift import Lifted
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Candidate, Config


@dataclass(frozen=True)
class FileKey:
    """The facts in the name of an engine's config file."""

    E: int
    N: int  # columns of the down weight
    device: str  # as the driver names it, "_" for " "
    dtype: str | None = None  # None: 16-bit weights
    block_shape: tuple[int, int] | None = None
    per_channel_quant: bool = False
    gemm: Gemm = Gemm.UP
    packed: bool = True  # N counts bytes, which hold two elements each of int4_w4a16

    @property
    def intermediate_size(self) -> int:
        """The problem's N in elements."""
        return self.N * 2 if self.packed and self.dtype == Dtype.INT4_W4A16.value else self.N


@dataclass(frozen=True)
class ShippedFile:
    """A config file that the engine ships."""

    path: Path
    key: FileKey
    triton: str | None  # the version in its folder's name; None without version folders
    entries: Mapping[int, Config]  # in the file's order; empty if the file is unreadable
    oddities: tuple[str, ...]  # faults for which a strict reading refuses the file

    @property
    def nvidia(self) -> bool:
        return self.key.device.startswith("NVIDIA")


@dataclass(frozen=True)
class Fusion:
    """What fusing shared experts adds to a layer's `E` and `top_k`, and the reason."""

    experts: int
    top_k: int
    why: str


NOT_FUSED = Fusion(0, 0, "shared experts are not fused")


class MoeKernels(Protocol):
    """The fused-MoE kernels of one engine version."""

    @property
    def hash(self) -> str:
        """The sha256 of the lifted source of all kernels."""
        ...

    @property
    def lifted(self) -> Lifted: ...

    def bind(
        self, problem: FusedMoe, gemm: Gemm, batch_size: int, config: Config, target: Target
    ) -> Binding:
        """The kernel that the engine launches, and its arguments. Raises UnsupportedKernel."""
        ...

    def binder(
        self, problem: FusedMoe, target: Target
    ) -> Callable[[Candidate], tuple[Lifted, Binding]]:
        """`bind` as a function of a candidate, for the compiler."""
        ...


def binder_of(
    kernels: MoeKernels, problem: FusedMoe, target: Target
) -> Callable[[Candidate], tuple[Lifted, Binding]]:
    """`MoeKernels.binder`, the same for all engines."""

    def bound(candidate: Candidate) -> tuple[Lifted, Binding]:
        point = candidate.point
        return kernels.lifted, kernels.bind(
            problem, gemm_of(point), point.batch_size, candidate.config, target
        )

    return bound


class MoeEngine(Protocol):
    """The fused-MoE layer of one engine version on disk.

    A `root` argument is `package_root`, or the folder that servers are pointed at instead; `triton`
    is a version such as "3.6.0".
    All methods may raise UnsupportedKernel if the version's source has an unknown layout.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def package_root(self) -> Path:
        """The folder of the package that holds the shipped `configs/`."""
        ...

    @property
    def config_dir_variable(self) -> str | None:
        """The environment variable for another root; None if the engine has none."""
        ...

    @property
    def fields(self) -> EntryFields:
        """The fields that entries of its files may have."""
        ...

    def config_dir(self, root: Path, triton: str) -> Path:
        """The folder for a Triton version's files."""
        ...

    def has_down_files(self) -> bool:
        """Whether the engine reads separate files for the down gemm."""
        ...

    def file_name(self, problem: FusedMoe, device: Device, gemm: Gemm) -> str:
        """The name that the engine looks for; UnsupportedKernel for DOWN without down files."""
        ...

    def read_file_name(self, name: str) -> FileKey:
        """Read a file's name. Raises MalformedConfigFile if the engine never looks for it."""
        ...

    def find_file(
        self, root: Path, problem: FusedMoe, device: Device, gemm: Gemm, triton: str
    ) -> Path | None:
        """The file that the engine's loader reads. Raises MalformedConfigFile if it would stop."""
        ...

    def pick(self, entries: Mapping[int, Config], batch_size: int) -> Config:
        """The entry that the engine runs at a batch size. `entries` must not be empty."""
        ...

    def shipped(self, *, nvidia_only: bool = True) -> Iterator[ShippedFile]:
        """The files that the engine ships."""
        ...

    def default_config(self, problem: FusedMoe, device: Device, batch_size: int) -> Config:
        """The configuration that the engine runs without a file. It may lack launch options."""
        ...

    def incumbents(
        self,
        problem: FusedMoe,
        device: Device,
        batch_size: int,
        triton: str,
        root: Path | None = None,
    ) -> dict[str, dict[Gemm, Config]]:
        """What the engine runs: "default", and "shipped" where its loader finds a file."""
        ...

    def takes_tma(self, problem: FusedMoe) -> bool:
        """Whether the down kernel is correct when it loads through TMA."""
        ...

    def lift(self, backend: str = CUDA) -> MoeKernels:
        """The kernels for a backend, "cuda" or "hip". Raises UnsupportedKernel."""
        ...


def moe_engine(engine: Engine) -> MoeEngine:
    """The fused-MoE layer of an engine. Raises UnsupportedFamily if it cannot be tuned."""
    found: MoeEngine = engine_module(engine.name, "fused_moe").open_family(engine)
    return found

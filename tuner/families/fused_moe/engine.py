"""What tuning a fused-MoE layer asks of an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tuner.devices.table import Device
from tuner.devices.target import CUDA, Target
from tuner.engines.engine import Engine, engine_module
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.kernels.binding import Binding
from tuner.kernels.lift import Lifted
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Candidate, Config


@dataclass(frozen=True)
class FileKey:
    """What the name of an engine's config file says."""

    E: int
    N: int  # columns of the down weight, which int4_w4a16 packs two by two
    device: str  # as the driver names it, "_" for " "
    dtype: str | None = None  # None: 16-bit weights
    block_shape: tuple[int, int] | None = None
    per_channel_quant: bool = False
    gemm: Gemm = Gemm.UP

    @property
    def intermediate_size(self) -> int:
        """The problem's N, in elements."""
        return self.N * 2 if self.dtype == Dtype.INT4_W4A16.value else self.N


@dataclass(frozen=True)
class ShippedFile:
    """A config file that comes with the engine."""

    path: Path
    key: FileKey
    triton: str | None  # of the folder it lies in; None in the layout without version folders
    entries: Mapping[int, Config]  # in the file's order
    oddities: tuple[str, ...]  # what a strict reading would refuse; no entries if unreadable


@dataclass(frozen=True)
class Fusion:
    """What fusing the shared experts adds to the layer, and the reason in a sentence."""

    experts: int
    top_k: int
    why: str


NOT_FUSED = Fusion(0, 0, "shared experts are not fused")


class MoeKernels(Protocol):
    """The fused-MoE kernels of one engine version."""

    @property
    def hash(self) -> str:
        """The kernels' identity: sha256 of all that is lifted."""
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
        """`bind` for the candidates of one problem, as a compiler wants it."""
        ...


class MoeEngine(Protocol):
    """The fused-MoE layer of one engine version on disk.

    A `root` argument is a folder that holds `configs/`; `triton` a version such as "3.6.0".
    Any method may raise UnsupportedKernel where the version's source is not as known.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def package_root(self) -> Path:
        """The folder in the package that holds the shipped `configs/`."""
        ...

    @property
    def config_dir_variable(self) -> str | None:
        """The variable that points the engine at another root; None where it has none."""
        ...

    def config_dir(self, root: Path, triton: str) -> Path:
        """Where files for a Triton version go."""
        ...

    def has_down_files(self) -> bool:
        """Whether the engine reads files of their own for the down gemm."""
        ...

    def file_name(self, problem: FusedMoe, device: Device, gemm: Gemm) -> str:
        """The name that the engine looks for; UnsupportedKernel for DOWN without down files."""
        ...

    def read_file_name(self, name: str) -> FileKey:
        """What a file's name says. Raises MalformedConfigFile for one that is never asked for."""
        ...

    def find_file(
        self, root: Path, problem: FusedMoe, device: Device, gemm: Gemm, triton: str
    ) -> Path | None:
        """The file that the engine's loader reads. Raises MalformedConfigFile where it stops."""
        ...

    def pick(self, entries: Mapping[int, Config], batch_size: int) -> Config:
        """The entry of a file that the engine runs at a batch size. `entries` is not empty."""
        ...

    def shipped(self, *, nvidia_only: bool = True) -> Iterator[ShippedFile]:
        """The files that come with the engine."""
        ...

    def default_config(self, problem: FusedMoe, device: Device, batch_size: int) -> Config:
        """What the engine runs without a file, with the engine's own keys."""
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
        """Whether its down kernel is right when it loads through tensor descriptors."""
        ...

    def lift(self, backend: str = CUDA) -> MoeKernels:
        """Its kernels on a backend, "cuda" or "hip". Raises UnsupportedKernel."""
        ...


def moe_engine(engine: Engine) -> MoeEngine:
    """The fused-MoE layer of an engine. Raises UnsupportedFamily where it has none here."""
    found: MoeEngine = engine_module(engine.name, "fused_moe").open_family(engine)
    return found

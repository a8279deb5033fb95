"""Define the interface of engines whose fused-MoE layers can be tuned."""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from tuner.devices.table import Device
from tuner.devices.target import Target
from tuner.engines import file_engine
from tuner.engines.config_files import EntryFields, read_lenient
from tuner.engines.engine import Engine, Release, engine_module, release_of
from tuner.engines.file_engine import FileEngine
from tuner.errors import MalformedConfigFile
from tuner.families.fused_moe.problem import BATCH_SIZES, FusedMoe, Gemm, gemm_of
from tuner.kernels.binding import Binding, FamilyKernels
from tuner.models.model import Model
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Candidate, Config


@dataclass(frozen=True)
class MoeFileKey(file_engine.FileKey):
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
        """Return the problem's N in elements."""
        return self.N * 2 if self.packed and self.dtype == Dtype.INT4_W4A16.value else self.N


ShippedFile = file_engine.ShippedFile[MoeFileKey]

# The names of files: E=256,N=64,device_name=NVIDIA_L40S[,dtype=..][,block_shape=[n, k]]
# [,per_channel_quant=True][_down].json
# It also finds a name inside a line. Numbers have a limited length, so that none is absurd.
NAME = re.compile(
    r"E=(?P<E>\d{1,7}),N=(?P<N>\d{1,7}),device_name=(?P<device>[^,/\\]*?)"
    r"(?:,dtype=(?P<dtype>\w+?))?"
    r"(?:,block_shape=\[(?P<n>\d{1,6}),\s*(?P<k>\d{1,6})\])?"
    r"(?P<per_channel>,per_channel_quant=True)?"
    r"(?P<down>_down)?\.json",
    re.ASCII,
)


def format_file_name(key: MoeFileKey, comma: str = ", ") -> str:
    """Return the file name for a key; `parse_file_name` reads it back. `comma`: in a block's
    shape.
    """
    name = f"E={key.E},N={key.N},device_name={key.device}"
    if key.dtype:
        name += f",dtype={key.dtype}"
    if key.block_shape:
        name += f",block_shape=[{comma.join(map(str, key.block_shape))}]"
    if key.per_channel_quant:
        name += ",per_channel_quant=True"
    return f"{name}{'_down' if key.gemm is Gemm.DOWN else ''}.json"


def parse_file_name(name: str, comma: str = ", ", *, packed: bool = True) -> MoeFileKey:
    """Read a file's name. `packed`: see `MoeFileKey`.

    Raises MalformedConfigFile for a name that no engine looks for.
    """
    match = NAME.fullmatch(name)
    if match:
        key = MoeFileKey(
            E=int(match["E"]),
            N=int(match["N"]),
            device=match["device"],
            dtype=match["dtype"],
            block_shape=(int(match["n"]), int(match["k"])) if match["n"] else None,
            per_channel_quant=match["per_channel"] is not None,
            gemm=Gemm.DOWN if match["down"] else Gemm.UP,
            packed=packed,
        )
        if format_file_name(key, comma) == name:  # refuses leading zeros and another comma
            return key
    raise MalformedConfigFile(
        f"{name!r} is not a config file's name, like "
        f"'E=256,N=64,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128{comma}128].json'"
    )


@dataclass(frozen=True)
class Fusion:
    """The experts and choices that fused shared experts add to `E` and `top_k`, and the reason."""

    experts: int
    top_k: int
    why: str


@dataclass(frozen=True)
class FusionCase:
    """The facts that decide whether an engine fuses a model's shared experts."""

    model: Model
    engine_version: str | None  # None: a recent release
    target: Target
    tp: int = 1
    ep: int = 1
    dtype: Dtype | None = None  # None: the model's own
    all_to_all: str = ""  # the backend that sends a rank its tokens; "": each rank gets all
    force: bool | None = None  # overrides the engine's default

    @property
    def release(self) -> Release:
        """Return the version as numbers; (): it is not known."""
        return release_of(self.engine_version) if self.engine_version else ()


NOT_FUSED = Fusion(0, 0, "shared experts are not fused")


class MoeKernels(FamilyKernels):
    """The fused-MoE kernels of an engine version."""

    # Whether slots of experts elsewhere, under expert parallelism, fill blocks of their own.
    foreign_blocks: ClassVar[bool]

    @abstractmethod
    def bind(
        self, problem: FusedMoe, gemm: Gemm, batch_size: int, config: Config, target: Target
    ) -> Binding:
        """Return the kernel that the engine launches, and its arguments. Raises
        UnsupportedKernel.
        """

    def bound(self, problem: FusedMoe, candidate: Candidate, target: Target) -> Binding:
        point = candidate.point
        return self.bind(problem, gemm_of(point), point.batch_size, candidate.config, target)


class LoaderRules(Protocol):
    """The rules of a loader that all engines have."""

    @property
    def source(self) -> Path:
        """Return the file that defines the loader; configs/ lies beside it."""

    @property
    def config_dir_env(self) -> bool:
        """Say whether a variable names a folder that is asked before the package, or replaces
        it.
        """


@dataclass(frozen=True)
class MoeEngine(FileEngine[MoeFileKey, MoeKernels]):
    """The fused-MoE layer of an engine version on disk. `triton` is a version such as "3.6.0"."""

    pattern = "**/*.json"  # some versions have a folder for each Triton
    variable: ClassVar[str]  # names another root, if the loader asks for it

    @property
    @abstractmethod
    def rules(self) -> LoaderRules:
        """Return how the version's loader finds files, as its source says."""

    @property
    def package_root(self) -> Path:
        return self.rules.source.parent

    @property
    def config_dir_variable(self) -> str | None:
        """Return the environment variable for another root; None if the engine has none."""
        return self.variable if self.rules.config_dir_env else None

    def read_any_name(self, name: str) -> MoeFileKey:
        """Read a file name like `read_file_name`, also for facts that the engine's own names never
        have.
        """
        return self.read_file_name(name)

    @property
    @abstractmethod
    def fields(self) -> EntryFields:
        """Return the fields that entries of the engine's files may have."""

    def fields_of(self, key: MoeFileKey) -> EntryFields:
        return self.fields

    @abstractmethod
    def config_dir(self, root: Path, triton: str) -> Path:
        """Return the folder for a Triton version's files."""

    @abstractmethod
    def has_down_files(self) -> bool:
        """Say whether the engine reads separate files for the down gemm."""

    @abstractmethod
    def file_name(self, problem: FusedMoe, device: Device, gemm: Gemm) -> str:
        """Return the name that the engine looks for. Raises UnsupportedKernel for DOWN without down
        files.
        """

    @abstractmethod
    def find_file(
        self, root: Path | None, problem: FusedMoe, device: Device, gemm: Gemm, triton: str
    ) -> Path | None:
        """Return the file that the engine's loader reads, for DOWN perhaps the UP file; None if it
        finds no file. Raises MalformedConfigFile if the loader would stop.
        """

    @abstractmethod
    def default_config(self, problem: FusedMoe, device: Device, batch_size: int) -> Config:
        """Return the heuristic's configuration, which the engine runs for both gemms without a
        file.

        It may lack num_warps and num_stages; `launch_config` adds Triton's defaults.
        """

    @property
    def stops_on_block_m(self) -> bool:
        """Say whether servers stop if the entries of up and down differ in BLOCK_SIZE_M."""
        return False

    def incumbents(
        self,
        problem: FusedMoe,
        device: Device,
        batch_size: int,
        triton: str,
        root: Path | None = None,
    ) -> dict[str, dict[Gemm, Config]]:
        """Return the engine's own configurations: "default" without files, and "shipped" if its
        loader finds a file under `root`, unless the files of up and down together would stop
        servers.
        """
        default = self.default_config(problem, device, batch_size)
        found = {"default": dict.fromkeys(Gemm, default)}
        up = self.entry(root, problem, device, Gemm.UP, batch_size, triton)
        down = self.entry(root, problem, device, Gemm.DOWN, batch_size, triton)
        if up is None and down is None:
            return found
        up = up or default
        down = down or up  # without a down file, one configuration serves both gemms
        if down["BLOCK_SIZE_M"] != up["BLOCK_SIZE_M"]:
            if self.stops_on_block_m:
                return found
            down = down.replace(BLOCK_SIZE_M=up["BLOCK_SIZE_M"])  # the engine sorts tokens once
        found["shipped"] = {Gemm.UP: up, Gemm.DOWN: down}
        return found

    def sizes(self, problem: FusedMoe, device: Device, triton: str) -> list[int]:
        """Return the batch sizes that a file must hold: the engine's own, and the sizes of its
        shipped files.

        At a missing size, the engine would run the entry of another size, and no longer the entry
        that it runs without the file.
        """
        paths = (self.find_file(None, problem, device, gemm, triton) for gemm in Gemm)
        found = (read_lenient(path, self.fields).entries for path in paths if path)
        return sorted({*BATCH_SIZES, *(size for entries in found for size in entries)})

    def takes_tma(self, problem: FusedMoe, gemm: Gemm) -> bool:
        """Say whether a gemm's kernel may load through TMA, and is then correct."""
        return False

    def entry(
        self,
        root: Path | None,
        problem: FusedMoe,
        device: Device,
        gemm: Gemm,
        batch_size: int,
        triton: str,
    ) -> Config | None:
        """Return the entry of the file that the loader reads for a gemm; None if it finds no
        file.
        """
        path = self.find_file(root, problem, device, gemm, triton)
        entries = read_lenient(path, self.fields).entries if path else {}
        return self.pick(entries, batch_size) if entries else None


def moe_engine(engine: Engine) -> MoeEngine:
    """Return the fused-MoE layer of an engine. Raises UnsupportedFamily if it cannot be tuned."""
    found: MoeEngine = engine_module(engine.name, "fused_moe").open_family(engine)
    return found

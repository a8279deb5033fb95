"""Define the config files of a family in a copy of an engine: names, places, and entries that run.

A family's class derives from `FileEngine`, or from `PointwiseFiles` if each size stands alone. An
engine's class defines the differences: a file's name, the folders of files, and the configuration
that runs without a file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from tuner.devices.table import Device
from tuner.devices.target import CUDA, Target
from tuner.engines.config_files import (
    ConfigFile,
    EntryFields,
    nearest_entry,
    read_lenient,
    shipped_at,
)
from tuner.engines.engine import Engine
from tuner.errors import MalformedConfigFile
from tuner.problems.points import Config, Problem, folder_version


class FileKey:
    """The facts in the name of a config file. Each family's names have further facts."""

    device: str  # as the driver names it, "_" for " "


P = TypeVar("P", bound=Problem)
K = TypeVar("K", bound=FileKey)
L = TypeVar("L", covariant=True)  # the kernels


@dataclass(frozen=True)
class ShippedFile(Generic[K]):
    """A config file that an engine ships."""

    path: Path
    key: K
    triton: str | None  # the version in its folder's name; None without version folders
    # By the file's own keys, in its order; empty if the file is unreadable. An empty Config is a
    # null entry: there the engine runs a kernel that is not Triton's.
    entries: Mapping[int, Config]
    oddities: tuple[str, ...]  # faults for which a strict reading refuses the file


@dataclass(frozen=True)
class FileEngine(ABC, Generic[K, L]):
    """The config files of a family in a copy of an engine, and the kernels that they are for.

    A `root` argument is `package_root`, or the folder that servers are pointed at instead. None
    stands for the shipped files: `package_root` without the files that an export wrote into it. All
    methods may raise UnsupportedKernel if the version's source has an unknown layout, reads no such
    files, or has no kernel for a problem.
    """

    engine: Engine

    pattern: ClassVar[str] = "*.json"  # of the files below `configs`

    @property
    def name(self) -> str:
        return self.engine.name

    @property
    def version(self) -> str:
        return self.engine.version

    @property
    @abstractmethod
    def package_root(self) -> Path:
        """Return the root of the files that the engine ships."""

    @property
    def configs(self) -> Path:
        """Return the folder of the files that the engine ships."""
        return self.package_root / "configs"

    @abstractmethod
    def read_file_name(self, name: str) -> K:
        """Read a file's name. Raises MalformedConfigFile if the engine never looks for it."""

    @abstractmethod
    def fields_of(self, key: K) -> EntryFields:
        """Return the fields that entries of such a file may have."""

    @abstractmethod
    def lift(self, platform: str = CUDA) -> L:
        """Lift the kernels for a platform, "cuda" or "hip"."""

    def pick(self, entries: Mapping[int, Config], key: int) -> Config:
        """Return the entry that the engine runs at a batch size or `file_key`.

        It may be a null entry, which is an empty Config. `entries` must not be empty.
        """
        return nearest_entry(entries, key)

    def claims(self, name: str) -> bool:
        """Say whether a file of this name is one of these files."""
        try:
            self.read_file_name(name)
        except MalformedConfigFile:
            return False
        return True

    def shipped(self, vendor: str = "NVIDIA") -> Iterator[ShippedFile[K]]:
        """Yield the files that the engine ships for a vendor's GPUs, by path; "" for all vendors.

        Files of other kernels are skipped.
        """
        for path in sorted(self.configs.glob(self.pattern)):
            if self.claims(path.name):
                key = self.read_file_name(path.name)
                if key.device.startswith(vendor) and (shipped := shipped_at(path)):
                    yield self._read_shipped(path, key, shipped)

    def _read_shipped(self, path: Path, key: K, shipped: Path) -> ShippedFile[K]:
        try:
            file = read_lenient(shipped, self.fields_of(key))
        except MalformedConfigFile as error:
            file = ConfigFile(path, {}, (str(error),))
        triton = folder_version(path.parent.name) if path.parent != self.configs else None
        return ShippedFile(path, key, triton, file.entries, file.oddities)


@dataclass(frozen=True)
class PointwiseFiles(FileEngine[K, L], Generic[P, K, L]):
    """The config files of a family whose sizes stand alone."""

    grid: ClassVar[tuple[int, ...]]  # the batch sizes that the engine's own files are made for

    @abstractmethod
    def file_name(self, problem: P, device: Device) -> str:
        """Return the name that the engine looks for."""

    @abstractmethod
    def default_config(self, problem: P, device: Device, batch_size: int) -> Config:
        """Return the configuration that the engine runs without a file."""

    def folders(self, root: Path) -> Iterable[Path]:
        """Return the folders in which the engine's loader looks for files, in order."""
        return (root / "configs",)

    def file_key(self, problem: P, batch_size: int) -> int:
        """Return the number for which the loader picks an entry."""
        return batch_size

    def effective(self, problem: P, config: Config, target: Target) -> Config:
        """Return an entry as the loader passes it to the kernel."""
        return config

    def sizes(self, problem: P, device: Device) -> list[int]:
        """Return the batch sizes that a file must hold.

        At a missing batch size the engine would run the entry of another size, instead of its
        configuration without the file.
        """
        return sorted({*self.grid, *self.shipped_sizes(problem, device)})

    def shipped_sizes(self, problem: P, device: Device) -> Iterable[int]:
        """Return the batch sizes of the file that the engine ships."""
        return self.entries(problem, device)

    def find_file(self, root: Path | None, problem: P, device: Device) -> Path | None:
        """Return the file that the engine's loader reads; None if there is none."""
        return file_in(
            root, self.folders(root or self.package_root), self.file_name(problem, device)
        )

    def entries(self, problem: P, device: Device, root: Path | None = None) -> Mapping[int, Config]:
        """Return the entries that the loader reads for a problem, by `file_key`; none without a
        file.
        """
        path = self.find_file(root, problem, device)
        if path is None:
            return {}
        fields = self.fields_of(self.read_file_name(self.file_name(problem, device)))
        return read_lenient(path, fields).entries

    def incumbents(
        self, problem: P, device: Device, batch_size: int, root: Path | None = None
    ) -> dict[str, Config]:
        """Return the engine's configurations: "default" without a file, and "shipped" if its loader
        finds an entry that is not null.
        """
        found = {"default": self.default_config(problem, device, batch_size)}
        entries = self.entries(problem, device, root)
        if entries and (entry := self.pick(entries, self.file_key(problem, batch_size))):
            found["shipped"] = self.effective(problem, entry, device.target)
        return found


def file_in(root: Path | None, folders: Iterable[Path], name: str) -> Path | None:
    """Return the first file of that name in the folders; without a `root`, the first
    shipped file.
    """
    paths = (folder / name for folder in folders)
    found = (shipped_at(path) if root is None else path for path in paths)
    return next((path for path in found if path and path.exists()), None)

"""sglang's config files for dense GEMMs on disk, and how sglang picks their entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tuner.devices.table import Device
from tuner.devices.target import CUDA, Target
from tuner.engines.config_files import ConfigFile, EntryFields, nearest_entry, read_lenient
from tuner.engines.sglang.dense_gemm.binding import SGLangGemmKernels, lift_dense_gemm
from tuner.engines.sglang.dense_gemm.file_names import format_file_name, parse_file_name
from tuner.engines.sglang.dense_gemm.launchers import GemmLaunchers
from tuner.engines.sglang.package import SGLang
from tuner.engines.sglang.plugin.gemm_loaders import fields_of
from tuner.errors import MalformedConfigFile, UnsupportedKernel
from tuner.families.dense_gemm.engine import FileKey, ShippedFile
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.problems.points import Config


@dataclass(frozen=True)
class SGLangDenseGemm:
    """The dense GEMMs of one copy of sglang; see `GemmEngine` for the interface."""

    engine: SGLang

    @property
    def name(self) -> str:
        return self.engine.name

    @property
    def version(self) -> str:
        return self.engine.version

    @cached_property
    def launchers(self) -> GemmLaunchers:
        return GemmLaunchers(self.engine)

    # Locations and names of files

    @property
    def package_root(self) -> Path:
        return self.launchers.fp8_source.parent

    def file_name(self, problem: DenseGemm, device: Device) -> str:
        """The name that the engine looks for. Raises UnsupportedKernel if it looks for none."""
        if not self.launchers.reads_files(problem):
            raise UnsupportedKernel(f"{self.launchers.origin} reads no file for {problem.spec()}")
        block = problem.block
        return format_file_name(
            FileKey(problem.N, problem.K, device.name, problem.dtype.value, block)
        )

    def read_file_name(self, name: str) -> FileKey:
        return parse_file_name(name)

    def fields(self, key: FileKey) -> EntryFields:
        return fields_of(key.block)

    def find_file(self, root: Path, problem: DenseGemm, device: Device) -> Path | None:
        if not self.launchers.reads_files(problem):
            return None
        path = root / "configs" / self.file_name(problem, device)
        return path if path.exists() else None

    # The engine's choices

    def pick(self, entries: Mapping[int, Config], batch_size: int) -> Config:
        return nearest_entry(entries, batch_size)

    def effective(self, problem: DenseGemm, config: Config, target: Target) -> Config:
        return self.launchers.loaded(problem, config, target)

    def incumbents(
        self, problem: DenseGemm, device: Device, batch_size: int, root: Path | None = None
    ) -> dict[str, Config]:
        """What the engine runs: "default" without a file, "shipped" with the file of the package
        or of `root`. A null entry, with which the engine runs CUTLASS, is neither.
        """
        kernels = self.lift(device.target.backend)
        found = {"default": kernels.default_config(problem, batch_size, device.target)}
        path = self.find_file(root or self.package_root, problem, device)
        entries = read_lenient(path, fields_of(problem.block)).entries if path else {}
        if entries and (entry := self.pick(entries, batch_size)):
            found["shipped"] = self.effective(problem, entry, device.target)
        return found

    def shipped(self, *, nvidia_only: bool = True) -> Iterator[ShippedFile]:
        """All of this family's files in the package, sorted by path."""
        for path in sorted((self.package_root / "configs").glob("*.json")):
            try:
                key = parse_file_name(path.name)
            except MalformedConfigFile:
                continue
            if key.device.startswith("NVIDIA") or not nvidia_only:
                yield _read_shipped(path, key)

    def lift(self, backend: str = CUDA) -> SGLangGemmKernels:
        if backend == CUDA:
            return self._cuda_kernels
        return lift_dense_gemm(self.launchers, backend)

    @cached_property
    def _cuda_kernels(self) -> SGLangGemmKernels:
        return lift_dense_gemm(self.launchers)


def _read_shipped(path: Path, key: FileKey) -> ShippedFile:
    try:
        file = read_lenient(path, fields_of(key.block))
    except MalformedConfigFile as error:
        file = ConfigFile(path, {}, (str(error),))
    return ShippedFile(path, key, file.entries, file.oddities)

"""sglang's config files for dense GEMMs on disk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tuner.devices.table import Device
from tuner.devices.target import CUDA, Target
from tuner.engines.config_files import EntryFields
from tuner.engines.sglang.dense_gemm.binding import SGLangGemmKernels, lift_dense_gemm
from tuner.engines.sglang.dense_gemm.file_names import format_file_name, parse_file_name
from tuner.engines.sglang.dense_gemm.launchers import GemmLaunchers
from tuner.engines.sglang.package import SGLang
from tuner.engines.sglang.plugin.gemm_loaders import fields_of
from tuner.errors import UnsupportedKernel
from tuner.families.dense_gemm.engine import GemmEngine, GemmFileKey
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.problems.points import Config


@dataclass(frozen=True)
class SGLangDenseGemm(GemmEngine):
    """The dense GEMMs of one copy of sglang."""

    engine: SGLang

    @cached_property
    def launchers(self) -> GemmLaunchers:
        return GemmLaunchers(self.engine)

    @property
    def package_root(self) -> Path:
        """The engine looks nowhere else."""
        return self.launchers.fp8_source.parent

    def file_name(self, problem: DenseGemm, device: Device) -> str:
        if not self.launchers.reads_files(problem):
            raise UnsupportedKernel(f"{self.launchers.origin} reads no file for {problem.spec()}")
        block = problem.block
        return format_file_name(
            GemmFileKey(problem.N, problem.K, device.name, problem.dtype.value, block)
        )

    def read_file_name(self, name: str) -> GemmFileKey:
        return parse_file_name(name)

    def fields_of(self, key: GemmFileKey) -> EntryFields:
        return fields_of(key.block)

    def find_file(self, root: Path, problem: DenseGemm, device: Device) -> Path | None:
        if not self.launchers.reads_files(problem):
            return None
        return super().find_file(root, problem, device)

    def effective(self, problem: DenseGemm, config: Config, target: Target) -> Config:
        return self.launchers.loaded(problem, config, target)

    def lift(self, backend: str = CUDA) -> SGLangGemmKernels:
        if backend == CUDA:
            return self._cuda_kernels
        return lift_dense_gemm(self.launchers, backend)

    @cached_property
    def _cuda_kernels(self) -> SGLangGemmKernels:
        return lift_dense_gemm(self.launchers)

"""Read sglang's config files for dense GEMMs on disk.

N=2112,K=7168,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128, 128].json
N=2112,K=7168,device_name=NVIDIA_L40S,dtype=fp8_w8a8_channelwise.json
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tuner.bindings.sglang.dense_gemm.binding import SGLangGemmKernels
from tuner.bindings.sglang.dense_gemm.launchers import GemmLaunchers
from tuner.bindings.sglang.plugin.gemm_loaders import fields_of
from tuner.devices.table import Device
from tuner.devices.target import CUDA, Target
from tuner.engines.config_files import EntryFields
from tuner.engines.sglang.package import SGLang
from tuner.errors import MalformedConfigFile, UnsupportedKernel
from tuner.families.dense_gemm.engine import GemmEngine, GemmFileKey
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.problems.points import Config


@dataclass(frozen=True)
class SGLangDenseGemm(GemmEngine):
    """The dense GEMMs of a copy of sglang."""

    engine: SGLang

    @cached_property
    def launchers(self) -> GemmLaunchers:
        return GemmLaunchers(self.engine)

    @property
    def package_root(self) -> Path:
        """Return the folder that holds the engine's `configs`; the engine looks nowhere else."""
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

    def find_file(self, root: Path | None, problem: DenseGemm, device: Device) -> Path | None:
        if not self.launchers.reads_files(problem):
            return None
        return super().find_file(root, problem, device)

    def effective(self, problem: DenseGemm, config: Config, target: Target) -> Config:
        return self.launchers.loaded(problem, config, target)

    def lift(self, platform: str = CUDA) -> SGLangGemmKernels:
        if platform == CUDA:
            return self._cuda_kernels
        return SGLangGemmKernels(self.launchers, platform)

    @cached_property
    def _cuda_kernels(self) -> SGLangGemmKernels:
        return SGLangGemmKernels(self.launchers)


# It also finds a name inside a line. Numbers have a limited length, so that none is absurd. The
# line may have lost the space in `[128, 128]`.
NAME = re.compile(
    r"N=(?P<N>\d{1,7}),K=(?P<K>\d{1,7}),device_name=(?P<device>[^,/\\]*?),"
    r"dtype=(?:(?P<dtype>\w+?),block_shape=\[(?P<n>\d{1,6}),\s*(?P<k>\d{1,6})\]"
    r"|(?P<channel>\w+?)_channelwise)\.json",
    re.ASCII,
)


def format_file_name(key: GemmFileKey) -> str:
    """Return the file name for a key; `parse_file_name` reads it back."""
    name = f"N={key.N},K={key.K},device_name={key.device},dtype={key.dtype}"
    blocks = f",block_shape={list(key.block)}" if key.block else "_channelwise"
    return f"{name}{blocks}.json"


def find_file_name(text: str) -> GemmFileKey | None:
    """Return the facts of the first file name in a line or path; None if it has no such name."""
    match = NAME.search(text)
    return _key(match) if match else None


def parse_file_name(name: str) -> GemmFileKey:
    """Read a file's name. Raises MalformedConfigFile for a name that no engine looks for."""
    match = NAME.fullmatch(name)
    key = _key(match) if match else None
    if key is None or format_file_name(key) != name:  # leading zeros, a missing space
        raise MalformedConfigFile(
            f"{name!r} is not the name of a GEMM's config file, like "
            "'N=2112,K=7168,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128, 128].json'"
        )
    return key


def _key(match: re.Match[str]) -> GemmFileKey:
    return GemmFileKey(
        N=int(match["N"]),
        K=int(match["K"]),
        device=match["device"],
        dtype=match["dtype"] or match["channel"],
        block=(int(match["n"]), int(match["k"])) if match["n"] else None,
    )

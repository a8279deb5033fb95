"""Read vLLM's fused-MoE config files on disk.

E=256,N=64,device_name=NVIDIA_H100_80GB_HBM3[,dtype=..][,block_shape=[128,128]].json
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

from tuner.bindings.vllm.functions import device_functions
from tuner.bindings.vllm.fused_moe.binding import VLLMMoeKernels, lift_fused_moe
from tuner.bindings.vllm.fused_moe.loader_rules import (
    CONFIG_DIR_VARIABLE,
    SOURCE,
    LoaderRules,
    read_loader_rules,
)
from tuner.devices.table import Device
from tuner.devices.target import CUDA
from tuner.engines.config_files import (
    AMD_OPTIONS,
    LAUNCH_OPTIONS,
    REQUIRED_FIELDS,
    ZERO_OPTIONS,
    EntryFields,
)
from tuner.engines.file_engine import file_in
from tuner.engines.vllm.package import VLLM
from tuner.errors import MalformedConfigFile, UnsupportedKernel
from tuner.families.fused_moe import engine as moe
from tuner.families.fused_moe.engine import MoeEngine, MoeFileKey
from tuner.families.fused_moe.export import MoeDelivery
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config

_FIELDS = EntryFields(
    REQUIRED_FIELDS,
    (*REQUIRED_FIELDS, "SPLIT_K", *LAUNCH_OPTIONS, *AMD_OPTIONS),
    zero=ZERO_OPTIONS,
)


@dataclass(frozen=True)
class VLLMFusedMoe(MoeEngine):
    """The fused-MoE layer of a copy of vLLM.

    A single file and configuration serve both gemms. All Triton versions share a file.
    """

    engine: VLLM

    variable = CONFIG_DIR_VARIABLE

    @cached_property
    def rules(self) -> LoaderRules:
        return read_loader_rules(self.engine.root, f"{self.name} {self.version}")

    @property
    def fields(self) -> EntryFields:
        aside = {"triton_version"} if self.rules.takes_triton_version else ()
        return replace(_FIELDS, aside=frozenset(aside))

    def config_dir(self, root: Path, triton: str) -> Path:
        """Return the folder of files: the variable's folder itself, or configs/ of the package."""
        return root / "configs" if root == self.package_root else root

    def has_down_files(self) -> bool:
        return False

    def file_name(self, problem: FusedMoe, device: Device, gemm: Gemm) -> str:
        if gemm is Gemm.DOWN:
            raise UnsupportedKernel("vLLM reads no _down files: one file serves both gemms")
        return _file_name(self.engine, device, problem)

    def read_file_name(self, name: str) -> MoeFileKey:
        return parse_file_name(name)

    def read_any_name(self, name: str) -> MoeFileKey:
        return moe.parse_file_name(name, ",", packed=False)

    def find_file(
        self, root: Path | None, problem: FusedMoe, device: Device, gemm: Gemm, triton: str
    ) -> Path | None:
        """Return the file that the loader reads; DOWN has the file of UP."""
        name = self.file_name(problem, device, Gemm.UP)
        folder = self.config_dir(root or self.package_root, triton)
        return file_in(root, (folder, self.configs), name)

    def default_config(self, problem: FusedMoe, device: Device, batch_size: int) -> Config:
        """Return the heuristic's configuration.

        Raises UnsupportedKernel for quantisation groups along k: vLLM runs a compiled kernel, or
        other tiles for each gemm.
        """
        if problem.grouped:
            raise UnsupportedKernel(
                f"vLLM runs {problem.spec()} by a compiled kernel, or with tiles that no "
                "configuration sets: it is not tuned"
            )
        arguments = {
            "M": batch_size,
            "E": problem.E,
            "N": problem.N,
            "K": problem.K,
            "topk": problem.top_k,
            "dtype": dtype_word(problem),
            "is_marlin": False,
            "block_shape": _block_shape(problem),
        }
        found = device_functions(self.engine, SOURCE, device).call("get_default_config", arguments)
        # Its launcher sets SPLIT_K to 1 in any case.
        return Config({name: value for name, value in found.items() if name != "SPLIT_K"})

    def lift(self, platform: str = CUDA) -> VLLMMoeKernels:
        return lift_fused_moe(self.engine, platform)


@lru_cache(maxsize=512)  # exports sort hundreds of paths by it
def _file_name(engine: VLLM, device: Device, problem: FusedMoe) -> str:
    arguments = {
        "E": problem.E,
        "N": problem.N,
        "dtype": dtype_word(problem),
        "block_shape": _block_shape(problem),
    }
    name: str = device_functions(engine, SOURCE, device).call("get_config_file_name", arguments)
    return name


def _block_shape(problem: FusedMoe) -> list[int] | None:
    return list(problem.block_shape) if problem.block_shape else None


# `_get_config_dtype_str` of vLLM's config.py, for all releases since 0.10.
_WORDS = ("fp8_w8a8", "fp8_w8a16", "int8_w8a16", "int4_w4a16", "float32")
_WIDE = (Dtype.BFLOAT16, Dtype.FLOAT16)


def dtype_word(problem: FusedMoe) -> str | None:
    """Return the dtype in the name; None for 16-bit weights.

    Raises UnsupportedKernel for int8_w8a8: vLLM's names lack this dtype, so it would read the file
    of 16-bit weights.
    """
    if problem.dtype is Dtype.INT8_W8A8:
        raise UnsupportedKernel(
            "vLLM has no separate config file for int8_w8a8: serve it with sglang"
        )
    return None if problem.dtype in _WIDE else problem.dtype.value


def parse_file_name(name: str) -> MoeFileKey:
    """Read a file's name. Raises MalformedConfigFile for a name that vLLM never looks for."""
    key = moe.parse_file_name(name, ",", packed=False)
    if key.dtype is not None and key.dtype not in _WORDS:
        raise MalformedConfigFile(f"{name!r}: vLLM looks for no file with dtype={key.dtype}")
    if key.dtype is None and key.block_shape:
        raise MalformedConfigFile(f"{name!r}: vLLM looks for no block_shape of 16-bit weights")
    if key.per_channel_quant or key.gemm is Gemm.DOWN:
        raise MalformedConfigFile(f"{name!r}: vLLM looks for no per_channel_quant and no _down")
    return key


def open_delivery(engine: VLLM) -> MoeDelivery:
    """Return the delivery of a layer's winners to the servers of a copy of vLLM."""
    # If the folder of the variable lacks a file, servers read the package's.
    return MoeDelivery(VLLMFusedMoe(engine), replaces_packaged=False)

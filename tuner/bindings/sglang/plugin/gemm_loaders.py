"""List the functions with which sglang reads its config files for dense GEMMs, in 0.4.4 to 0.5.23.

A launcher looks up its loader by name in its module. So once a loader is replaced there, launchers
ask the new loader. Servers import this module, so it needs only the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass

from tuner.engines.config_files import (
    AMD_OPTIONS,
    LAUNCH_OPTIONS,
    REQUIRED_FIELDS,
    ZERO_OPTIONS,
    EntryFields,
)
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.problems.dtypes import Dtype
from tuner.problems.points import TRITON_DEFAULTS

# The packages of the modules, in versions since 0.4.4, the newest first. Later versions keep other
# functions in modules of the same name at the earlier places.
PACKAGES = (
    "sglang.kernels.ops.gemm",
    "sglang.kernels.ops.quantization",
    "sglang.srt.layers.quantization",
)

FLAGS = frozenset({"SWAP_AB"})  # true or false in files and for kernels, 1 or 0 in a Config
BLOCK_FIELDS = EntryFields(
    REQUIRED_FIELDS,
    (*REQUIRED_FIELDS, *LAUNCH_OPTIONS, "SWAP_AB", "SPLIT_K", *AMD_OPTIONS),
    flags=FLAGS,
    zero=ZERO_OPTIONS,
)
_CHANNEL = (*REQUIRED_FIELDS[:3], *TRITON_DEFAULTS)
CHANNEL_FIELDS = EntryFields(_CHANNEL, _CHANNEL, null=True)  # null: CUTLASS is faster


@dataclass(frozen=True)
class Loader:
    """A loader, and the launchers that use its entries."""

    module: str
    function: str
    dtype: Dtype
    blocks: bool  # the scales are for blocks; otherwise they are for rows and columns
    launchers: tuple[str, ...]  # by their names in any version; in each version, one launches

    def reads(self, problem: DenseGemm) -> bool:
        """Say whether the loader reads the files of a problem."""
        return problem.dtype is self.dtype and (problem.block is not None) is self.blocks


FP8_BLOCKS = Loader(
    "fp8_kernel",
    "get_w8a8_block_fp8_configs",
    Dtype.FP8_W8A8,
    blocks=True,
    launchers=("w8a8_block_fp8_matmul_triton", "w8a8_block_fp8_matmul"),
)
INT8_BLOCKS = Loader(
    "int8_kernel",
    "get_w8a8_block_int8_configs",
    Dtype.INT8_W8A8,
    blocks=True,
    launchers=("w8a8_block_int8_matmul",),
)
FP8_CHANNELS = Loader(
    "fp8_kernel",
    "get_w8a8_channelwise_fp8_configs",
    Dtype.FP8_W8A8,
    blocks=False,
    launchers=("triton_scaled_mm",),
)
LOADERS = (FP8_BLOCKS, INT8_BLOCKS, FP8_CHANNELS)


def fields_of(block: tuple[int, int] | None) -> EntryFields:
    """Return the fields that entries may have for quantisation blocks; None: per channel."""
    return BLOCK_FIELDS if block else CHANNEL_FIELDS


def loader_of(problem: DenseGemm) -> Loader | None:
    """Return the loader that reads the files of a problem; None if no version has such a loader."""
    return next((loader for loader in LOADERS if loader.reads(problem)), None)

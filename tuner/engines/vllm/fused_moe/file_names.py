"""The names of vLLM's fused-MoE config files.

E=256,N=64,device_name=NVIDIA_H100_80GB_HBM3[,dtype=..][,block_shape=[128,128]].json
"""

from __future__ import annotations

from tuner.errors import MalformedConfigFile, UnsupportedKernel
from tuner.families.fused_moe import warning_line
from tuner.families.fused_moe.engine import MoeFileKey
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.problems.dtypes import Dtype

# `_get_config_dtype_str` of vLLM's config.py, for all releases since 0.10.
_WORDS = ("fp8_w8a8", "fp8_w8a16", "int8_w8a16", "int4_w4a16", "float32")
_WIDE = (Dtype.BFLOAT16, Dtype.FLOAT16)


def dtype_word(problem: FusedMoe) -> str | None:
    """The dtype in the name; None for 16-bit weights.

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
    key = warning_line.parse_file_name(name, ",", packed=False)
    if key.dtype is not None and key.dtype not in _WORDS:
        raise MalformedConfigFile(f"{name!r}: vLLM looks for no file with dtype={key.dtype}")
    if key.dtype is None and key.block_shape:
        raise MalformedConfigFile(f"{name!r}: vLLM looks for no block_shape of 16-bit weights")
    if key.per_channel_quant or key.gemm is Gemm.DOWN:
        raise MalformedConfigFile(f"{name!r}: vLLM looks for no per_channel_quant and no _down")
    return key

"""vLLM's fused-MoE config files: their names and their format.

vLLM looks for `$VLLM_TUNED_CONFIG_FOLDER/<name>`, then for the file of that name in its package,
and falls back to a heuristic. One file serves both gemms. Source: get_config_file_name,
get_moe_configs and try_get_optimal_moe_config in vllm/model_executor/layers/fused_moe/fused_moe.py
and _get_config_dtype_str in config.py beside it, in vLLM's commit 13cb3e44.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tuner.devices.table import Device
from tuner.engines.config_files import LAUNCH_OPTIONS, REQUIRED_FIELDS, launch_config
from tuner.errors import UnsupportedKernel
from tuner.families.fused_moe.problem import FusedMoe
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config

CONFIG_DIR_VARIABLE = "VLLM_TUNED_CONFIG_FOLDER"
_FIELDS = (*REQUIRED_FIELDS, *LAUNCH_OPTIONS)  # the fields of an entry that vLLM's kernel takes
_DTYPES = {Dtype.FP8_W8A8, Dtype.INT8_W8A16, Dtype.INT4_W4A16}


def config_file_name(problem: FusedMoe, device: Device) -> str:
    """The name that vLLM looks for.

    Raises UnsupportedKernel for int8_w8a8: vLLM's names do not include this dtype, so it would
    read the file of 16-bit weights.
    """
    if problem.dtype is Dtype.INT8_W8A8:
        raise UnsupportedKernel(
            "vLLM has no separate config file for int8_w8a8: serve it with sglang"
        )
    # Every card of the H200 family reads the H200's file.
    name = "NVIDIA_H200" if "H200" in device.name.split("_") else device.name
    # Unlike sglang, vLLM counts N in elements for int4 too.
    text = f"E={problem.E},N={problem.N},device_name={name}"
    if problem.dtype in _DTYPES:
        text += f",dtype={problem.dtype.value}"
    if problem.block_shape and all(problem.block_shape):
        text += f",block_shape=[{problem.block_shape[0]},{problem.block_shape[1]}]"
    return f"{text}.json"


def config_file_text(entries: Mapping[int, Config], triton: str) -> str:
    """The JSON that vLLM reads. It records the version `triton`, which vLLM ignores.

    Raises UnsupportedKernel for an entry with a field that vLLM's kernel does not take.
    """
    rows: dict[str, object] = {"triton_version": triton}
    for size in sorted(entries):
        config = launch_config(entries[size])
        unknown = [name for name in config if name not in _FIELDS]
        if unknown:
            raise UnsupportedKernel(f"vLLM's kernel takes no {unknown[0]}, which M={size} sets")
        rows[str(size)] = {name: config[name] for name in _FIELDS if name in config}
    return json.dumps(rows, indent=4) + "\n"

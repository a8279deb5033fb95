"""Quantised dense GEMMs in sglang."""

from __future__ import annotations

from tuner.bindings.sglang.dense_gemm.delivery import GemmDelivery
from tuner.bindings.sglang.dense_gemm.files import SGLangDenseGemm, find_file_name, format_file_name
from tuner.bindings.sglang.fused_moe.shared_experts import shared_expert_fusion
from tuner.devices.target import cuda_target
from tuner.engines.engine import release_of
from tuner.engines.sglang.package import SGLang
from tuner.errors import BadProblem
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.families.fused_moe.engine import FusionCase
from tuner.models.model import Model
from tuner.models.serving import Resolved, Serving
from tuner.problems.dtypes import parse_dtype

__all__ = [
    "fuses_qkv_a",
    "fuses_shared_experts",
    "open_delivery",
    "open_family",
    "parse_warning",
    "resolve_warning",
]


open_family = SGLangDenseGemm
parse_warning = find_file_name


def open_delivery(engine: SGLang) -> GemmDelivery:
    """Return the delivery of dense GEMMs' winners to the servers of a copy of sglang."""
    return GemmDelivery(SGLangDenseGemm(engine))


def resolve_warning(text: str, serving: Serving) -> Resolved | None:
    """Return the problem whose file a line names; None if it names no file. Raises BadProblem."""
    key = parse_warning(text)
    if key is None:
        return None
    name, dtype = format_file_name(key), parse_dtype(key.dtype)
    if serving.dtype not in (None, dtype):
        raise BadProblem(f"{name} is of {dtype.value}, not {serving.dtype.value}")
    problem = DenseGemm(key.N, key.K, dtype, key.block)
    notes = (f"the output is {problem.out.value}; the file serves other types too",)
    return Resolved((problem,), notes, key.device or None)


# 0.4.4 runs q_a_proj and kv_a_proj_with_mqa apart. From 0.5.2 on, srt/models/deepseek_v2.py
# concatenates their weights.
_FUSED_SINCE = (0, 5, 2)


def fuses_qkv_a(engine_version: str | None) -> bool:
    """Say whether that release runs q_a and kv_a as one GEMM; True for an unknown release."""
    return engine_version is None or release_of(engine_version) >= _FUSED_SINCE


def fuses_shared_experts(model: Model, serving: Serving) -> bool:
    """Say whether that release fuses shared experts by default on that GPU.

    Without a GPU, a recent GPU is assumed.
    """
    case = FusionCase(
        model,
        serving.engine_version,
        serving.device.target if serving.device else cuda_target(9, 0),
        tp=serving.tp,
        ep=serving.options.get("ep") or 1,
        dtype=serving.dtype,
        all_to_all=serving.options.get("all_to_all", ""),
        force=serving.options.get("fuse_shared"),
    )
    return shared_expert_fusion(case).experts > 0

"""Quantised dense GEMMs in sglang."""

from __future__ import annotations

from tuner.engines.sglang.dense_gemm.delivery import GemmDelivery
from tuner.engines.sglang.dense_gemm.files import SGLangDenseGemm
from tuner.engines.sglang.dense_gemm.qkv_a import fuses_qkv_a
from tuner.engines.sglang.dense_gemm.shared_experts import fuses_shared_experts
from tuner.engines.sglang.dense_gemm.warning_line import parse_warning, resolve_warning
from tuner.engines.sglang.package import SGLang

__all__ = [
    "fuses_qkv_a",
    "fuses_shared_experts",
    "open_delivery",
    "open_family",
    "parse_warning",
    "resolve_warning",
]


open_family = SGLangDenseGemm


def open_delivery(engine: SGLang) -> GemmDelivery:
    """How the winners of dense GEMMs reach the servers of one copy of sglang."""
    return GemmDelivery(SGLangDenseGemm(engine))

"""Which releases of sglang run DeepSeek's first attention layer as one GEMM."""

from __future__ import annotations

from tuner.engines.locate import release_of

# 0.4.4 runs q_a_proj and kv_a_proj_with_mqa apart. From 0.5.2 on, srt/models/deepseek_v2.py
# concatenates their weights.
_FUSED_SINCE = (0, 5, 2)


def fuses_qkv_a(engine_version: str | None) -> bool:
    """Whether that release runs q_a and kv_a as one; a release that is not known does."""
    return engine_version is None or release_of(engine_version) >= _FUSED_SINCE

"""Kimi delta attention in sglang."""

from __future__ import annotations

from tuner.engines.sglang.gated_delta import open_delivery, state_dtype
from tuner.engines.sglang.kda.binding import SGLangKda

__all__ = ["open_delivery", "open_family", "state_dtype"]

open_family = SGLangKda

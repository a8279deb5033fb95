"""The scan of gated delta nets in sglang."""

from __future__ import annotations

from tuner.engines.sglang.chunk_scan import open_delivery, state_dtype
from tuner.engines.sglang.gated_delta.binding import SGLangGatedDelta

__all__ = ["open_delivery", "open_family", "state_dtype"]

open_family = SGLangGatedDelta

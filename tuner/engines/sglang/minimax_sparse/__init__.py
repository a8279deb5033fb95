"""MiniMax's sparse attention in sglang."""

from __future__ import annotations

from tuner.engines.sglang.chunk_scan import open_delivery
from tuner.engines.sglang.minimax_sparse.binding import SGLangMinimaxSparse

__all__ = ["open_delivery", "open_family"]

open_family = SGLangMinimaxSparse

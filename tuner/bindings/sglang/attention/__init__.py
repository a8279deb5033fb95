"""Attention in sglang."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.bindings.sglang.attention.binding import SGLangAttentionKernels, lift_attention
from tuner.bindings.sglang.attention.delivery import AttentionDelivery
from tuner.bindings.sglang.attention.kv_splits import engine_kv_splits, takes_kv_splits
from tuner.bindings.sglang.attention.remedy import find_remedy
from tuner.bindings.sglang.attention.serving import refuse_ranks, serving_notes
from tuner.bindings.sglang.plugin.files import file_name
from tuner.devices.table import Device
from tuner.devices.target import CUDA
from tuner.engines.sglang.package import SGLang
from tuner.families.attention.engine import AttentionEngine, Remedy
from tuner.families.attention.problem import Attention, AttentionPhase

__all__ = ["open_delivery", "open_family", "refuse_ranks", "serving_notes", "takes_kv_splits"]


@dataclass(frozen=True)
class SGLangAttention(AttentionEngine):
    """The attention of a copy of sglang."""

    engine: SGLang

    def lift(
        self, platform: str = CUDA, sources: Mapping[AttentionPhase, Path] | None = None
    ) -> SGLangAttentionKernels:
        return lift_attention(self.engine, platform, sources)

    def remedy(self, device: Device) -> Remedy | None:
        return find_remedy(self.engine, device)

    def file_name(self, problem: Attention, device_name: str) -> str:
        return file_name(problem, device_name)

    def most_splits(self, problem: Attention, sm_count: int) -> int:
        """Return `engine_kv_splits` for a server without flags and with a long context."""
        return engine_kv_splits(
            latent=problem.shares_kv, engine_version=self.engine.version, sm_count=sm_count
        )


open_family = SGLangAttention


open_delivery = AttentionDelivery

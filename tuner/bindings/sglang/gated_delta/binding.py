"""Bind sglang's kernels of gated delta nets as its own launchers launch them.

`chunk_gated_delta_rule` (fla/chunk.py) decides which launchers run, and `TritonGDNKernel.extend`
what the tensors are: contiguous rows of all prompts of a batch. Prompts are followed that begin
here, from states of zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.bindings.sglang.scan_kernels import SGLangScanKernels
from tuner.devices.target import CUDA, Target
from tuner.engines.sglang.package import SGLang
from tuner.families.gated_delta.problem import NAME
from tuner.families.scans.engine import ScanEngine, chunk_lists


@dataclass(frozen=True)
class SGLangDeltaKernels(SGLangScanKernels):
    """The kernels of one version of sglang."""

    def _known(self, source: Path, target: Target) -> Mapping[str, object]:
        return chunk_lists(self._given)


@dataclass(frozen=True)
class SGLangGatedDelta(ScanEngine):
    """The scan of gated delta nets of one copy of sglang."""

    engine: SGLang

    def lift(self, backend: str = CUDA) -> SGLangDeltaKernels:
        return SGLangDeltaKernels.of(self.engine, NAME, backend)

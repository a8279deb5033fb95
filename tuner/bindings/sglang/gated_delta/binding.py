"""Bind sglang's kernels of gated delta nets as its own launchers launch them.

`chunk_gated_delta_rule` (fla/chunk.py) decides which launchers run, and `TritonGDNKernel.extend`
the layout of tensors: contiguous rows of all prompts of a batch. The launchers are followed for
prompts that begin here, from states of zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.bindings.sglang.scan_kernels import SGLangScanKernels
from tuner.bindings.sglang.scan_sources import SOURCES
from tuner.devices.target import Target
from tuner.engines.sglang.package import SGLang
from tuner.families.scans.engine import chunk_lists
from tuner.families.scans.gated_delta.problem import NAME


@dataclass(frozen=True)
class SGLangDeltaKernels(SGLangScanKernels):
    """The kernels of a version of sglang."""

    def _known(self, target: Target) -> Mapping[str, object]:
        return chunk_lists(self._given)


def lift_gated_delta(engine: SGLang, platform: str) -> SGLangDeltaKernels:
    """Return the kernels of a copy of sglang. Raises UnsupportedKernel."""
    return SGLangDeltaKernels.of(engine, SOURCES, NAME, platform)

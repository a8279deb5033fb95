"""Bind vLLM's kernels of chunked scans as its own launchers launch them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tuner.bindings.vllm.functions import EngineFunctions
from tuner.devices.target import Target
from tuner.engines.vllm.package import VLLM
from tuner.families.scans.engine import ScanKernels
from tuner.kernels.definitions import Definitions


@dataclass(frozen=True)
class VLLMScanKernels(ScanKernels[VLLM]):
    """The kernels of a family in a version of vLLM."""

    def _open(self, source: Path, target: Target) -> Definitions:
        return EngineFunctions(
            self.engine,
            str(source.relative_to(self.engine.root)),
            target,
            known=self._known(target),
            chosen=self._chosen,
            _launches=self._launches,
        ).definitions

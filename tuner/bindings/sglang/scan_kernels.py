"""Bind sglang's kernels of chunked scans as its own launchers launch them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tuner.devices.target import Target
from tuner.engines.sglang.package import SGLang
from tuner.families.scans.engine import ScanKernels
from tuner.kernels.definitions import Definitions
from tuner.kernels.stand_ins import stand_in_torch, stand_in_triton


@dataclass(frozen=True)
class SGLangScanKernels(ScanKernels[SGLang]):
    """The kernels of a family in a version of sglang."""

    def _open(self, source: Path, target: Target) -> Definitions:
        triton, torch = stand_in_triton(self._launches.append), stand_in_torch(target)
        known = {
            "torch": torch,
            "triton": triton,
            "tl": triton.language,
            **self._known(target),
        }
        own = self.engine.root, self.lifted.origin
        return Definitions(source, *own, known, self._launches.append, self._chosen)

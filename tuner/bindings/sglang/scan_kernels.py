"""Bind sglang's kernels of chunked scans as its own launchers launch them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tuner.bindings.sglang.scan_sources import folder_of, lift_scan, scan_here
from tuner.devices.target import Target
from tuner.engines.sglang.package import SGLang
from tuner.families.scans.engine import ScanKernels
from tuner.kernels.definitions import Definitions
from tuner.kernels.stand_ins import stand_in_torch, stand_in_triton

K = TypeVar("K", bound="SGLangScanKernels")


@dataclass(frozen=True)
class SGLangScanKernels(ScanKernels[SGLang]):
    """The kernels of one family in one version of sglang."""

    @classmethod
    def of(cls: type[K], engine: SGLang, family: str, backend: str, **more: Any) -> K:  # noqa: ANN401
        """Lift a family's kernels. Raises UnsupportedKernel."""
        lifted = lift_scan(engine, family, backend)
        return cls(engine, scan_here(family), folder_of(engine, family), lifted, **more)

    def _known(self, source: Path, target: Target) -> Mapping[str, object]:
        """Further stand-ins, by the names in a file and those that it uses."""
        return {}

    def _open(self, source: Path, target: Target) -> Definitions:
        triton, torch = stand_in_triton(self._launches.append), stand_in_torch(target)
        known = {
            "torch": torch,
            "triton": triton,
            "tl": triton.language,
            **self._known(source, target),
        }
        own = self.engine.root, self.lifted.origin
        return Definitions(source, *own, known, self._launches.append, self._chosen)

"""Bind vLLM's kernels of chunked scans as its own launchers launch them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tuner.bindings.vllm.functions import EngineFunctions
from tuner.bindings.vllm.scan_sources import folder_of, lift_scan, scan_here
from tuner.devices.target import Target
from tuner.engines.vllm.package import VLLM
from tuner.families.scans.engine import ScanKernels
from tuner.kernels.definitions import Definitions

K = TypeVar("K", bound="VLLMScanKernels")


@dataclass(frozen=True)
class VLLMScanKernels(ScanKernels[VLLM]):
    """The kernels of one family in one version of vLLM."""

    @classmethod
    def of(cls: type[K], engine: VLLM, family: str, backend: str, **more: Any) -> K:  # noqa: ANN401
        """Lift a family's kernels. Raises UnsupportedKernel."""
        lifted = lift_scan(engine, family, backend)
        return cls(engine, scan_here(family), folder_of(engine, family), lifted, **more)

    def _known(self, source: Path, target: Target) -> Mapping[str, object]:
        """Further stand-ins, by the names in a file and those that it uses."""
        return {}

    def _open(self, source: Path, target: Target) -> Definitions:
        return EngineFunctions(
            self.engine,
            str(source.relative_to(self.engine.root)),
            target,
            known=self._known(source, target),
            chosen=self._chosen,
            _launches=self._launches,
        ).definitions

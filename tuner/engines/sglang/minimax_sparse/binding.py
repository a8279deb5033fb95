"""Bind sglang's kernels of MiniMax's sparse attention as its own launchers launch them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.devices.target import CUDA, Target
from tuner.engines.sglang.package import SGLang
from tuner.engines.sglang.scan_kernels import SGLangScanKernels
from tuner.families.minimax_sparse.problem import NAME, SparseKernel
from tuner.families.scans.engine import ScanEngine
from tuner.families.scans.scan import Call, ScanProblem
from tuner.kernels.stand_ins import KernelLaunch, platform_answers
from tuner.problems.points import Point

_TILE = "BLOCK_SIZE_Q"


@dataclass(frozen=True)
class SGLangMinimaxSparseKernels(SGLangScanKernels):
    """The kernels of one version of sglang."""

    def _known(self, source: Path, target: Target) -> Mapping[str, object]:
        return platform_answers(target)

    def _launched(
        self,
        problem: ScanProblem,
        point: Point,
        call: Call,
        config: Mapping[str, int],
        target: Target,
    ) -> KernelLaunch:
        """The launcher of CHOICE runs SCORES first, whose tile is asked for its grid."""
        if point.part is not SparseKernel.CHOICE:
            return super()._launched(problem, point, call, config, target)
        launch = super()._launched(problem, point, call, {**config, _TILE: 64}, target)
        return replace(launch, options={n: v for n, v in launch.options.items() if n != _TILE})


@dataclass(frozen=True)
class SGLangMinimaxSparse(ScanEngine):
    """The attention of one copy of sglang."""

    engine: SGLang

    def lift(self, backend: str = CUDA) -> SGLangMinimaxSparseKernels:
        return SGLangMinimaxSparseKernels.of(self.engine, NAME, backend)

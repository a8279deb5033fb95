"""Bind vLLM's kernels of KDA as its own launchers launch them.

`chunk_kda_with_fused_gate` (kda/chunk.py of models/kimi_k3/nvidia) decides which launchers run, and
`KimiGatedDeltaNetAttention` what the tensors are: contiguous rows of all prompts of a batch.
Prompts are followed that begin here, from states of zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from tuner.devices.target import CUDA, Target
from tuner.engines.vllm.package import VLLM
from tuner.engines.vllm.scan_kernels import VLLMScanKernels
from tuner.errors import UnsupportedKernel
from tuner.families.kda.problem import NAME, Kda
from tuner.families.kda.stages import gate_operands, launched_apart
from tuner.families.scans.engine import ScanEngine, chunk_lists, fla_answers
from tuner.families.scans.scan import Call, ScanProblem
from tuner.problems.points import Point


@dataclass(frozen=True)
class VLLMKdaKernels(VLLMScanKernels):
    """The kernels of one version of vLLM."""

    def _known(self, source: Path, target: Target) -> Mapping[str, object]:
        return {**fla_answers(target), **chunk_lists(self._given), **launched_apart(source)}

    def _arguments(self, problem: ScanProblem, point: Point, call: Call) -> Mapping[str, Any]:
        found = dict(super()._arguments(problem, point, call))
        if call.launcher == "fused_kda_gate_chunk_cumsum":
            del found["beta"]  # here a number of the activation
            gates = gate_operands(cast(Kda, problem), point)
            return {**found, **gates, "g_bias": gates["bias"]}
        if call.launcher == "chunk_gated_delta_rule_fwd_h":
            first = replace(found["initial_state"], name="initial")
            return {**found, "initial_state": first, "use_exp2": True}
        return found


@dataclass(frozen=True)
class VLLMKda(ScanEngine):
    """KDA of one copy of vLLM."""

    engine: VLLM

    def lift(self, backend: str = CUDA) -> VLLMKdaKernels:
        """The kernels. Raises UnsupportedKernel for AMD's cards, which have others."""
        if backend != CUDA:
            origin = f"{self.engine.name} {self.engine.version}"
            raise UnsupportedKernel(f"{origin} has other kernels for KDA on AMD's cards")
        return VLLMKdaKernels.of(self.engine, NAME, backend, differs={"base_two": True})

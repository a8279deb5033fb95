"""Bind sglang's kernels of KDA as its own launchers launch them.

`chunk_kda` (fla/kda.py) decides which launchers run, and `TritonKDAKernel.extend` what the tensors
are: contiguous rows of all prompts of a batch. Prompts are followed that begin here, from states of
zeros. Up to 256 pairs of a chunk and a head, other variants of kernels run, which are not tuned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from tuner.devices.target import CUDA, Target
from tuner.engines.sglang.package import SGLang
from tuner.engines.sglang.scan_kernels import SGLangScanKernels
from tuner.families.kda.problem import NAME, Kda, KdaKernel
from tuner.families.kda.stages import gate_operands, launched_apart
from tuner.families.scans.engine import ScanEngine, chunk_lists, fla_answers
from tuner.families.scans.scan import Call, ScanProblem
from tuner.problems.points import Config, Part, Point

_RCP_LN2 = 1.4426950216293335  # fla/kda.py of 0.5.23
_SMALL_GRID = 256  # pairs of a chunk and a head: `_small_grid` in fla/kda.py


@dataclass(frozen=True)
class SGLangKdaKernels(SGLangScanKernels):
    """The kernels of one version of sglang."""

    def _known(self, source: Path, target: Target) -> Mapping[str, object]:
        known = {"is_nvidia": target.backend == CUDA, **fla_answers(target)}
        return {**known, **chunk_lists(self._given), **launched_apart(source)}

    def _arguments(self, problem: ScanProblem, point: Point, call: Call) -> Mapping[str, Any]:
        found = dict(super()._arguments(problem, point, call))
        if call.launcher == "kda_gate_chunk_cumsum":
            two = self.differs["base_two"]
            gates = gate_operands(cast(Kda, problem), point)
            found |= {"g": gates["raw_g"], "dt_bias": gates["bias"], "beta": gates["raw_beta"]}
            found["scale"] = _RCP_LN2 if two else None
        if call.launcher == "chunk_gated_delta_rule_fwd_h":
            found["use_exp2"] = self.differs["base_two"]
        return found

    def first_tokens(self, problem: ScanProblem) -> int:
        chunks = _SMALL_GRID // cast(Kda, problem).heads + 1
        return chunks * problem.chunk_size

    def _list(self, problem: ScanProblem, part: Part, target: Target) -> list[Config]:
        """0.5.23's launcher of WEIGHTS says all on some cards."""
        if part is KdaKernel.WEIGHTS:
            call = self._stage(part).calls[0]
            point = Point(1, part, problem.chunk_size)
            if "num_warps" in self._launched(problem, point, call, {}, target).options:
                return []
        return super()._list(problem, part, target)


@dataclass(frozen=True)
class SGLangKda(ScanEngine):
    """KDA of one copy of sglang."""

    engine: SGLang

    def lift(self, backend: str = CUDA) -> SGLangKdaKernels:
        kernels = SGLangKdaKernels.of(self.engine, NAME, backend)
        states = kernels.lifted.parameters("chunk_gated_delta_rule_fwd_kernel_h_blockdim64")
        two = any(parameter.name == "USE_EXP2" for parameter in states)
        return replace(kernels, differs={"base_two": two})

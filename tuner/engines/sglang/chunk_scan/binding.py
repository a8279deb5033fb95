"""Bind sglang's kernels of the Mamba-2 scan as its own launchers launch them.

The layer (`MambaMixer2.forward`) decides what the tensors are: all prompts of a batch are one row
of tokens. Prompts are followed that begin here: no cached prefix, and no earlier chunk of a chunked
prefill. (CUDA's convolution, which Falcon-H1 and Granite 4 run, gives x the other order.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tuner.devices.target import CUDA, Target
from tuner.engines.sglang.chunk_scan.sources import LAUNCHERS, folder_of, lift_kernels
from tuner.engines.sglang.package import SGLang
from tuner.families.scans.engine import ScanEngine, ScanKernels
from tuner.families.chunk_scan.problem import ChunkScan, ScanKernel
from tuner.families.scans.sources import FILES
from tuner.kernels.definitions import Definitions
from tuner.kernels.stand_ins import TensorSpec, stand_in_torch, stand_in_triton
from tuner.problems.points import Point

_UNBATCHED = ("A", "D", "dt_bias", "cu_seqlens")
_VARLEN = "chunk_state_varlen"  # the launcher for the states at the ends of sequences


@dataclass(frozen=True)
class SGLangScanKernels(ScanKernels[SGLang]):
    """The kernels of one version of sglang."""

    passes_before = True

    def _arguments(self, problem: ChunkScan, point: Point, launcher: str) -> Mapping[str, Any]:
        found = dict(self.operands(problem, point, launcher))
        found["cu_seqlens"] = TensorSpec("sequence_ends", (point.batch_size + 1,), "i32")
        found["seq_idx"] = TensorSpec("token_sequence", found["out"].shape[:1], "i32")
        others = {"is_cont_batched": True, "chunk_indices": None, "chunk_offsets": None}
        if launcher == _VARLEN:
            return {**found, **others, "chunk_states": found["passed"]}
        batched = {name: _batched(name, value) for name, value in found.items()}
        return {**batched, **others}

    def _open(self, part: ScanKernel, target: Target) -> Definitions:
        triton = stand_in_triton(self._launches.append)
        torch = stand_in_torch(target)
        known = {"torch": torch, "triton": triton, "tl": triton.language, "TRITON_22": True}
        source = folder_of(self.engine) / FILES[part]
        own = self.engine.root, self.lifted.origin
        return Definitions(source, *own, known, self._launches.append, self._chosen)


def _batched(name: str, value: object) -> object:
    """A tensor with the one batch that all prompts are."""
    if not isinstance(value, TensorSpec) or name in _UNBATCHED:
        return value
    strides = value.strides and (prod((value.shape[0], value.strides[0])), *value.strides)
    return replace(value, shape=(1, *value.shape), strides=strides)


@dataclass(frozen=True)
class SGLangChunkScan(ScanEngine):
    """The Mamba-2 scan of one copy of sglang."""

    engine: SGLang

    def lift(self, backend: str = CUDA) -> SGLangScanKernels:
        return SGLangScanKernels(self.engine, lift_kernels(self.engine, backend), LAUNCHERS)

"""Bind sglang's kernels of the Mamba-2 scan as its own launchers launch them.

The layer (`MambaMixer2.forward`) decides the layout of tensors: all prompts of a batch are one row
of tokens. The launchers are followed for prompts that begin here: no cached prefix, and no earlier
chunk of a chunked prefill. Triton's convolution runs before the scan in all models, because the
rows that it is given are no contiguous columns (`causal_conv1d_fn` of 0.5.12, 0.5.16 and 0.5.23),
and x keeps their layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tuner.bindings.sglang.scan_kernels import SGLangScanKernels
from tuner.bindings.sglang.scan_sources import SOURCES
from tuner.devices.target import Target
from tuner.engines.sglang.package import SGLang
from tuner.families.scans.chunk_scan.problem import NAME
from tuner.families.scans.scan import Call, ScanProblem
from tuner.kernels.stand_ins import TensorSpec
from tuner.problems.points import Point

_UNBATCHED = ("A", "D", "dt_bias", "cu_seqlens")


@dataclass(frozen=True)
class SGLangSsdKernels(SGLangScanKernels):
    """The kernels of a version of sglang."""

    def _known(self, target: Target) -> Mapping[str, object]:
        return {"TRITON_22": True}

    def _arguments(self, problem: ScanProblem, point: Point, call: Call) -> Mapping[str, Any]:
        found = dict(super()._arguments(problem, point, call))
        found["cu_seqlens"] = TensorSpec("sequence_ends", (point.batch_size + 1,), "i32")
        found["seq_idx"] = TensorSpec("token_sequence", found["out"].shape[:1], "i32")
        others = {"is_cont_batched": True, "chunk_indices": None, "chunk_offsets": None}
        if call.launcher == "chunk_state_varlen":
            return {**found, **others, "chunk_states": found["passed"]}
        batched = {name: _batched(name, value) for name, value in found.items()}
        return {**batched, **others}


def _batched(name: str, value: object) -> object:
    """Return a tensor with a batch dimension of 1, because all prompts are one batch."""
    if not isinstance(value, TensorSpec) or name in _UNBATCHED:
        return value
    strides = value.strides and (prod((value.shape[0], value.strides[0])), *value.strides)
    return replace(value, shape=(1, *value.shape), strides=strides)


def lift_chunk_scan(engine: SGLang, platform: str) -> SGLangSsdKernels:
    """Return the kernels of a copy of sglang. Raises UnsupportedKernel."""
    differs = {"passes_before": True}
    return SGLangSsdKernels.of(engine, SOURCES, NAME, platform, differs=differs)

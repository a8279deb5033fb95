"""Bind vLLM's kernels of the Mamba-2 scan as its own launchers launch them.

The layer (`MambaMixer2.conv_ssm_forward`) decides the layout of tensors. A chunk never has tokens
of two sequences. The launchers are followed for prompts that begin here; their last states go
straight into the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.bindings.vllm.scan_kernels import VLLMScanKernels
from tuner.bindings.vllm.scan_sources import SOURCES
from tuner.devices.target import Target
from tuner.engines.vllm.package import VLLM
from tuner.families.scans.chunk_scan.problem import NAME, ChunkScan
from tuner.families.scans.scan import Call, ScanProblem
from tuner.kernels.stand_ins import RecordedKernel, TensorSpec
from tuner.problems.points import Point


def _launch_autotuned(kernel: RecordedKernel, grid: Any, **arguments: object) -> None:  # noqa: ANN401
    """Launch a kernel in place of vLLM's function of that name, which remembers an autotuner's
    choice.
    """
    kernel[grid](**arguments)


@dataclass(frozen=True)
class VLLMSsdKernels(VLLMScanKernels):
    """The kernels of a version of vLLM."""

    def _arguments(self, problem: ScanProblem, point: Point, call: Call) -> Mapping[str, Any]:
        assert isinstance(problem, ChunkScan)
        found = super()._arguments(problem, point, call)
        sequences, chunks = point.batch_size, found["CB"].shape[0]
        return {
            **found,
            "seq_idx": TensorSpec("chunk_sequence", (chunks,), "i32"),
            "cu_chunk_seqlens": TensorSpec("chunk_ends", (chunks + 1,), "i32"),
            "last_chunk_indices": TensorSpec("last_chunks", (sequences,), "i32"),
            "final_states": TensorSpec(
                "final",
                (sequences, problem.heads, problem.head_dim * problem.state_size),
                found["passed"].dtype,
            ),
            "final_state_indices": TensorSpec("final_slots", (sequences,), "i32"),
        }

    def _known(self, target: Target) -> Mapping[str, object]:
        return {"launch_autotuned": _launch_autotuned, "TRITON_22": True}


def lift_chunk_scan(engine: VLLM, platform: str) -> VLLMSsdKernels:
    """Return the kernels of a copy of vLLM. Raises UnsupportedKernel."""
    differs = {"passes_before": False}
    return VLLMSsdKernels.of(engine, SOURCES, NAME, platform, differs=differs)

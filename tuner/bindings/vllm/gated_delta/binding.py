"""Bind vLLM's kernels of gated delta nets as its own launchers launch them.

`chunk_gated_delta_rule` (ops/chunk.py) decides which launchers run, and `GatedDeltaNetAttention`
the layout of tensors: contiguous rows of all prompts of a batch, with q and k of length 1. The
launchers are followed for prompts that begin here, from states of zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.bindings.vllm.scan_kernels import VLLMScanKernels
from tuner.bindings.vllm.scan_sources import SOURCES
from tuner.devices.target import Target, cuda_target
from tuner.engines.vllm.package import VLLM
from tuner.errors import UnsupportedKernel
from tuner.families.scans.engine import chunk_lists, fla_answers
from tuner.families.scans.gated_delta.problem import NAME, DeltaKernel, GatedDelta
from tuner.problems.points import Point

_KEYS, _VALUES = 64, 32  # of a problem that tells the dimensions of states apart


@dataclass(frozen=True)
class VLLMDeltaKernels(VLLMScanKernels):
    """The kernels of a version of vLLM."""

    def _known(self, target: Target) -> Mapping[str, object]:
        return {**fla_answers(target), **chunk_lists(self._given)}

    def shape_of_states(self) -> tuple[int, ...]:
        """Return the shape of the states of a head with _KEYS and _VALUES numbers."""
        problem = GatedDelta(1, 1, _KEYS, _VALUES, chain=SOURCES.chain)
        point, tile = Point(1, DeltaKernel.STATES, problem.chunk_size), {"BV": _VALUES}
        call = self._kernel_of(point.part).calls[0]
        launch = self._launched(problem, point, call, tile, cuda_target(9, 0))
        shape: tuple[int, ...] = launch.arguments["h"].shape[-2:]
        return shape


def lift_gated_delta(engine: VLLM, platform: str) -> VLLMDeltaKernels:
    """Return the kernels of a copy of vLLM. Raises UnsupportedKernel also for 0.15.1, whose states
    lie otherwise.
    """
    found = VLLMDeltaKernels.of(engine, SOURCES, NAME, platform)
    shape = found.shape_of_states()
    if shape != (_VALUES, _KEYS):
        raise UnsupportedKernel(
            f"{found.lifted.origin} has no kernels for states of values by keys, but of {shape}"
        )
    return found

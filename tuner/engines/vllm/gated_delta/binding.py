"""Bind vLLM's kernels of gated delta nets as its own launchers launch them.

`chunk_gated_delta_rule` (ops/chunk.py) decides which launchers run, and `GatedDeltaNetAttention`
what the tensors are: contiguous rows of all prompts of a batch, with q and k of length 1. Prompts
are followed that begin here, from states of zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.devices.table import architecture
from tuner.devices.target import CUDA, Target, cuda_target
from tuner.engines.vllm.package import VLLM
from tuner.engines.vllm.scan_kernels import VLLMScanKernels
from tuner.engines.vllm.scan_sources import CHAIN
from tuner.errors import UnsupportedKernel
from tuner.families.gated_delta.problem import NAME, DeltaKernel, GatedDelta
from tuner.families.scans.engine import ScanEngine, chunk_lists
from tuner.problems.points import Point

_KEYS, _VALUES = 64, 32  # of a problem that tells the dimensions of states apart
_USUAL_SHARED_BYTES = 102400  # `Backend.DEFAULT` of fla/ops/utils.py


def fla_answers(target: Target) -> Mapping[str, object]:
    """What fla/ops/utils.py finds of a card, with the variables of the environment left out."""
    wide = architecture(target).shared_optin_bytes >= _USUAL_SHARED_BYTES
    return {
        "check_shared_mem": lambda arch="none": wide,
        "is_nvidia_hopper": target.is_sm_or_later(90),
        "is_tma_supported": False,
        "FLA_TRIL_PRECISION": "ieee",
        "_CAST_DOT_TO_K_DTYPE": target.name.startswith(("gfx11", "gfx12")),
    }


@dataclass(frozen=True)
class VLLMDeltaKernels(VLLMScanKernels):
    """The kernels of one version of vLLM."""

    def _known(self, target: Target) -> Mapping[str, object]:
        return {**fla_answers(target), **chunk_lists(self._given)}

    def shape_of_states(self) -> tuple[int, ...]:
        """How the states of a head with _KEYS and _VALUES numbers lie."""
        problem = GatedDelta(1, 1, _KEYS, _VALUES, chain=CHAIN)
        point, tile = Point(1, DeltaKernel.STATES, problem.chunk_size), {"BV": _VALUES}
        call = self._stage(point.part).calls[0]
        launch = self._launched(problem, point, call, tile, cuda_target(9, 0))
        shape: tuple[int, ...] = launch.arguments["h"].shape[-2:]
        return shape


@dataclass(frozen=True)
class VLLMGatedDelta(ScanEngine):
    """The scan of gated delta nets of one copy of vLLM."""

    engine: VLLM

    def lift(self, backend: str = CUDA) -> VLLMDeltaKernels:
        """The kernels. Raises UnsupportedKernel also for 0.15.1, whose states lie otherwise."""
        found = VLLMDeltaKernels.of(self.engine, NAME, backend)
        shape = found.shape_of_states()
        if shape != (_VALUES, _KEYS):
            raise UnsupportedKernel(
                f"{found.lifted.origin} has no kernels for states of values by keys, but of {shape}"
            )
        return found

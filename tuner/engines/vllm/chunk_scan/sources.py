"""Where vLLM's kernels of the Mamba-2 scan are."""

from __future__ import annotations

from tuner.devices.target import CUDA
from tuner.engines.vllm.package import VLLM
from tuner.families.chunk_scan import sources
from tuner.kernels.lift import Lifted

FOLDER = "model_executor/layers/mamba/ops"


def lift_kernels(engine: VLLM, backend: str = CUDA) -> Lifted:
    """The kernels for a backend, "cuda" or "hip". Raises UnsupportedKernel."""
    origin, folder = f"{engine.name} {engine.version}", engine.root / FOLDER
    return sources.lift_kernels(origin, engine.root, folder, sources.LAUNCHERS, backend)

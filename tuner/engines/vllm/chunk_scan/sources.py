"""Where vLLM's kernels of the Mamba-2 scan are."""

from __future__ import annotations

from dataclasses import replace

from tuner.devices.target import CUDA
from tuner.engines.vllm.package import VLLM
from tuner.families.chunk_scan.stages import SCAN
from tuner.families.scans import sources
from tuner.kernels.lift import Lifted

FOLDER = "model_executor/layers/mamba/ops"
# The last states go straight into the cache, so no kernel finds them at the ends of sequences.
STAGES = {part: replace(stage, calls=stage.calls[:1]) for part, stage in SCAN.stages.items()}


def lift_kernels(engine: VLLM, backend: str = CUDA) -> Lifted:
    """The kernels for a backend, "cuda" or "hip". Raises UnsupportedKernel."""
    origin, folder = f"{engine.name} {engine.version}", engine.root / FOLDER
    return sources.lift_kernels(origin, engine.root, folder, SCAN, STAGES, backend)

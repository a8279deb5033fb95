"""Where sglang's kernels of the Mamba-2 scan are."""

from __future__ import annotations

from pathlib import Path

from tuner.devices.target import CUDA
from tuner.engines.sglang.package import SGLang
from tuner.families.chunk_scan import sources
from tuner.families.chunk_scan.problem import ScanKernel
from tuner.kernels.lift import Lifted

_FOLDERS = ("kernels/ops/mamba/triton_ops", "srt/layers/attention/mamba/ops")  # the newest first
_STATE = {
    **sources.LAUNCHERS[ScanKernel.STATE],
    "chunk_state_varlen": "_chunk_state_varlen_kernel",
}
LAUNCHERS = {**sources.LAUNCHERS, ScanKernel.STATE: _STATE}


def folder_of(engine: SGLang) -> Path:
    """The folder of the kernels, which a release may lack."""
    folders = [engine.root / name for name in _FOLDERS]
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def lift_kernels(engine: SGLang, backend: str = CUDA) -> Lifted:
    """The kernels for a backend, "cuda" or "hip". Raises UnsupportedKernel."""
    origin = f"{engine.name} {engine.version}"
    return sources.lift_kernels(origin, engine.root, folder_of(engine), LAUNCHERS, backend)

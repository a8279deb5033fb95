"""Lift the kernels of a chain. Servers lift them too, so this module is light."""

from __future__ import annotations

from pathlib import Path

from tuner.errors import UnsupportedKernel
from tuner.families.scans.scan import Scan, Stages
from tuner.kernels.lift import Lifted, lift_files


def lift_kernels(
    origin: str, root: Path, folder: Path, scan: Scan, stages: Stages, backend: str
) -> Lifted:
    """The kernels of a chain's stages, in a folder below an engine's root. `origin`: the engine
    and its version, for messages. Raises UnsupportedKernel.
    """
    files: dict[Path, list[str]] = {}
    for stage in stages.values():
        names = files.setdefault(folder / stage.file, [])
        names += [call.kernel for call in stage.calls if call.kernel not in names]
    if not all(path.is_file() for path in files):
        raise UnsupportedKernel(f"{origin} has no kernels for {scan.layers} prompts")
    return lift_files(files, root, origin, backend)

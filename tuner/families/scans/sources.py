"""Lift the kernels of a chain. Servers lift them too, so this module is light."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tuner.errors import UnsupportedKernel
from tuner.families.scans.scan import Scan
from tuner.kernels.lift import Lifted, lift_files


def lift_kernels(origin: str, root: Path, folder: Path, scan: Scan, backend: str) -> Lifted:
    """The kernels of a chain, in a folder below an engine's root. `origin`: the engine and its
    version, for messages. Raises UnsupportedKernel.
    """
    files: dict[Path, list[str]] = {}
    for stage in scan.stages.values():
        names = files.setdefault(folder / stage.file, [])
        every = dict.fromkeys(name for call in stage.calls for name in call.kernels)
        names += [name for name in every if name not in names]
    if not all(path.is_file() for path in files):
        raise UnsupportedKernel(f"{origin} has no kernels for {scan.layers} prompts")
    return lift_files(files, root, origin, backend)


def folder_among(root: Path, names: Sequence[str]) -> Path:
    """The first folder of an engine that is there, or the first."""
    folders = [root / name for name in names]
    return next((folder for folder in folders if folder.is_dir()), folders[0])

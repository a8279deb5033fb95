"""Find the kernels of chunked scans in an engine. This module is light: servers lift too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tuner.devices.target import CUDA
from tuner.errors import UnsupportedKernel
from tuner.families.scans.scan import Scan, scan_named
from tuner.kernels.lift import Lifted, lift_files


class OnDisk(Protocol):
    """A copy of an engine."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def root(self) -> Path: ...


@dataclass(frozen=True)
class ScanSources:
    """The kernels of an engine's chunked scans, in all its releases."""

    folders: Mapping[str, tuple[str, ...]]  # by family, below the package, the newest first
    chain: str  # of families that have several
    adapt: Callable[[Scan], Scan] = lambda scan: scan  # for this engine, of a family's only chain

    def folder(self, root: Path, family: str) -> Path:
        """Return the folder of a family's kernels, which a release may lack."""
        folders = [root / name for name in self.folders[family]]
        return next((folder for folder in folders if folder.is_dir()), folders[0])

    def scan(self, family: str) -> Scan:
        """Return a family's chain as the engine has it."""
        scan = scan_named(family)
        return scan.of_chain(self.chain) if scan.chains else self.adapt(scan)

    def lift(self, engine: OnDisk, family: str, platform: str = CUDA) -> Lifted:
        """Return a family's kernels for a platform, "cuda" or "hip". Raises UnsupportedKernel."""
        origin, folder = f"{engine.name} {engine.version}", self.folder(engine.root, family)
        scan = self.scan(family)
        files: dict[Path, list[str]] = {}
        for tuned in scan.kernels.values():
            names = files.setdefault(folder / tuned.file, [])
            every = dict.fromkeys(name for call in tuned.calls for name in call.kernels)
            names += [name for name in every if name not in names]
        if not all(path.is_file() for path in files):
            raise UnsupportedKernel(f"{origin} has no kernels for {scan.layers} prompts")
        return lift_files(files, engine.root, origin, platform)

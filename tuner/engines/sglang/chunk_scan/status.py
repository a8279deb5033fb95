"""Which files of chunked scans a server in this environment would use, and why.

This needs no GPU, and imports nothing of the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tuner.devices.table import Device
from tuner.engines.sglang.chunk_scan.sources import lift_kernels
from tuner.engines.sglang.package import SGLang
from tuner.engines.sglang.plugin.file_checks import FileCheck, check_scan_file
from tuner.engines.sglang.presence import FilesStatus, facts_here, files_status
from tuner.families.scans.files import (
    CONFIG_DIR_VARIABLE,
    FOLDER,
    ScanFile,
    find_scan_files,
    scan_root,
)


def scan_status(
    engine: SGLang, device: Device | None, root: Path | None, environ: Mapping[str, str]
) -> FilesStatus:
    """Check the files under a root. `root` None: the root that the environment names.

    Raises BadInput if the root is not a folder.
    """
    facts = facts_here(engine, device, lambda: lift_kernels(engine).hash)
    about = "scan", CONFIG_DIR_VARIABLE, FOLDER

    def check(folder: Path) -> list[FileCheck[ScanFile]]:
        return [check_scan_file(path, facts) for path in find_scan_files(folder)]

    return files_status(engine, environ, root, scan_root(environ), about, check)

"""Which files of chunked scans a server in this environment would use, and why.

This needs no GPU, and imports nothing of the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tuner.devices.table import Device
from tuner.engines.sglang.package import SGLang
from tuner.engines.sglang.plugin.file_checks import FileCheck, check_scan_file
from tuner.engines.sglang.presence import FilesStatus, facts_here, files_status
from tuner.engines.sglang.scan_sources import lift_scan
from tuner.families.scans.files import (
    CONFIG_DIR_VARIABLE,
    FOLDER,
    ScanFile,
    family_of_file,
    find_scan_files,
    scan_root,
)


def scan_status(
    engine: SGLang, device: Device | None, root: Path | None, environ: Mapping[str, str]
) -> FilesStatus[FileCheck[ScanFile]]:
    """Check the files under a root. `root` None: the root that the environment names.

    Raises BadInput if the root is not a folder.
    """

    def check(path: Path) -> FileCheck[ScanFile]:
        own_hash = partial(_hash, engine, family_of_file(path))
        return check_scan_file(path, facts_here(engine, device, own_hash))

    about = "scan", CONFIG_DIR_VARIABLE, FOLDER
    return files_status(
        engine,
        environ,
        root,
        scan_root(environ),
        about,
        lambda folder: [check(path) for path in find_scan_files(folder)],
    )


def _hash(engine: SGLang, family: str) -> str:
    return lift_scan(engine, family).hash

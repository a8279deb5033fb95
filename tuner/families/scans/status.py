"""Which files of chunked scans a server in this environment would use, and why.

This needs no GPU, and imports nothing of the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tuner.devices.table import Device
from tuner.engines.engine import Engine, kernel_hash
from tuner.export.file_checks import FileCheck, Plugin, check_with
from tuner.export.presence import FilesStatus, facts_here, files_status
from tuner.families.scans.files import (
    CONFIG_DIR_VARIABLE,
    FOLDER,
    ScanFile,
    family_of_file,
    find_scan_files,
    read_scan_file,
    scan_root,
)


def scan_status(
    engine: Engine,
    plugin: Plugin,
    device: Device | None,
    root: Path | None,
    environ: Mapping[str, str],
    unfit: str = "",
) -> FilesStatus[FileCheck[ScanFile]]:
    """Check the files under a root. `root` None: the root that the environment names. `unfit`: see
    `files_status`.

    Raises BadInput if the root is not a folder.
    """

    def check(path: Path) -> FileCheck[ScanFile]:
        facts = facts_here(engine, device, partial(kernel_hash, engine, family_of_file(path)))
        return check_with(path, read_scan_file, facts, lambda file: "")

    return files_status(
        engine,
        plugin,
        environ,
        root,
        scan_root(environ),
        ("scan", CONFIG_DIR_VARIABLE, FOLDER),
        lambda folder: [check(path) for path in find_scan_files(folder)],
        unfit,
    )


def scan_files_json(status: FilesStatus[FileCheck[ScanFile]]) -> list[dict[str, Any]]:
    """What `tuner status --json` says of the files, each with its family."""
    files = zip(status.checks, status.files_json(), strict=True)
    return [{**file, "family": family_of_file(check.path)} for check, file in files]

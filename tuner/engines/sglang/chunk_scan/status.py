"""Which files of chunked scans a server in this environment would use, and why.

This needs no GPU, and imports nothing of the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tuner.devices.table import Device
from tuner.engines.sglang.chunk_scan.sources import lift_kernels
from tuner.engines.sglang.package import SGLang
from tuner.engines.sglang.plugin.file_checks import RuntimeFacts, check_scan_file
from tuner.engines.sglang.presence import (
    FilesStatus,
    checked_root,
    missing_plugin,
    no_plugins,
    triton_of,
)
from tuner.families.chunk_scan.files import (
    CONFIG_DIR_VARIABLE,
    FOLDER,
    find_scan_files,
    scan_root,
)


def scan_status(
    engine: SGLang, device: Device | None, root: Path | None, environ: Mapping[str, str]
) -> FilesStatus:
    """Check the files under a root. `root` None: the root that the environment names.

    Raises BadInput if the root is not a folder.
    """
    variable, folder = checked_root(root, scan_root(environ))
    trouble = no_plugins(engine) or missing_plugin(environ)
    facts = RuntimeFacts(
        engine=engine.name,
        engine_version=engine.version,
        device=device.name if device else None,
        triton=triton_of(engine),
        kernel_hash=lambda: lift_kernels(engine).hash,
    )
    checks = [check_scan_file(path, facts) for path in find_scan_files(folder)] if folder else []
    if trouble:
        checks = [replace(check, reason=check.reason or trouble) for check in checks]
    used = any(check.used for check in checks)
    environment = {CONFIG_DIR_VARIABLE: str(root.resolve())} if used and root else {}
    about = "scan", CONFIG_DIR_VARIABLE, FOLDER
    return FilesStatus(*about, variable, folder, trouble, checks, environment)

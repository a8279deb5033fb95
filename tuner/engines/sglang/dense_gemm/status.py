"""Which GEMM files a server in this environment would use, and why.

This needs no GPU, and imports nothing of the engine. Checks that need a GPU or triton are
reported as pending where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tuner.devices.table import Device
from tuner.engines.sglang.dense_gemm.files import SGLangDenseGemm
from tuner.engines.sglang.package import SGLang
from tuner.engines.sglang.plugin.file_checks import RuntimeFacts, check_gemm_file
from tuner.engines.sglang.plugin.gemm_files import (
    CONFIG_DIR_VARIABLE,
    FOLDER,
    find_gemm_files,
    gemm_root,
)
from tuner.engines.sglang.presence import (
    FilesStatus,
    checked_root,
    missing_plugin,
    no_plugins,
    triton_of,
)


def gemm_status(
    engine: SGLang, device: Device | None, root: Path | None, environ: Mapping[str, str]
) -> FilesStatus:
    """Check the files under a root. `root` None: the root that the environment names.

    Raises BadInput if the root is not a folder.
    """
    variable, folder = checked_root(root, gemm_root(environ))
    trouble = no_plugins(engine) or missing_plugin(environ)
    gemm = SGLangDenseGemm(engine)
    facts = RuntimeFacts(
        engine=engine.name,
        engine_version=engine.version,
        device=device.name if device else None,
        triton=triton_of(engine),
        kernel_hash=lambda: gemm.lift().hash,
    )
    paths = find_gemm_files(folder) if folder else []
    checks = [check_gemm_file(path, facts, gemm.launchers.reads_files) for path in paths]
    if trouble:
        checks = [replace(check, reason=check.reason or trouble) for check in checks]
    used = any(check.used for check in checks)
    environment = {CONFIG_DIR_VARIABLE: str(root.resolve())} if used and root else {}
    about = "GEMM", CONFIG_DIR_VARIABLE, FOLDER
    return FilesStatus(*about, variable, folder, trouble, checks, environment)

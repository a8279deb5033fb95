"""Which GEMM files a server in this environment would use, and why.

This needs no GPU, and imports nothing of the engine. Checks that need a GPU or triton are
reported as pending where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tuner.devices.table import Device
from tuner.engines.sglang.dense_gemm.files import SGLangDenseGemm
from tuner.engines.sglang.package import SGLang
from tuner.engines.sglang.plugin.file_checks import FileCheck, check_gemm_file
from tuner.engines.sglang.plugin.gemm_files import (
    CONFIG_DIR_VARIABLE,
    FOLDER,
    GemmFile,
    find_gemm_files,
    gemm_root,
)
from tuner.engines.sglang.presence import FilesStatus, facts_here, files_status


def gemm_status(
    engine: SGLang, device: Device | None, root: Path | None, environ: Mapping[str, str]
) -> FilesStatus:
    """Check the files under a root. `root` None: the root that the environment names.

    Raises BadInput if the root is not a folder.
    """
    gemm = SGLangDenseGemm(engine)
    facts = facts_here(engine, device, lambda: gemm.lift().hash)
    about = "GEMM", CONFIG_DIR_VARIABLE, FOLDER

    def check(folder: Path) -> list[FileCheck[GemmFile]]:
        return [
            check_gemm_file(path, facts, gemm.launchers.reads_files)
            for path in find_gemm_files(folder)
        ]

    return files_status(engine, environ, root, gemm_root(environ), about, check)

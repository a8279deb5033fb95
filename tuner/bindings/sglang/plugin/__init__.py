"""Give tuned attention and tuned GEMMs to a running sglang, as its plugin.

sglang calls `register` in each of its processes (entry point group `sglang.srt.plugins`,
`load_plugins`). Without files it does nothing. With attention files it hooks the constructor of the
Triton attention backend (`backend.py`), and with GEMM files the engine's loaders of config files
(`gemm.py`). With files of chunked scans it hooks the kernels themselves
(`families/scans/serve.py`).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from tuner.bindings.sglang.plugin.files import attention_root, find_attention_files
from tuner.bindings.sglang.plugin.gemm_files import find_gemm_files, gemm_root
from tuner.families.scans.files import find_scan_files, scan_root

log = logging.getLogger("tuner.plugin")

# The processes that run a model run this module, and it calls `load_plugins`, so it is already
# imported there. Other processes are not hooked: applying a hook imports its target's module, the
# engine's modules read their settings on import, and a server's main process calls `load_plugins`
# before it has read its arguments.
SCHEDULER = "sglang.srt.managers.scheduler"


def register() -> None:
    """Hook this process if it runs a model. The entry point names this function."""
    # The imports are light until there are files.
    if root := _root("attention", attention_root(os.environ), find_attention_files):
        from tuner.bindings.sglang.plugin.backend import hook_backend  # noqa: PLC0415

        hook_backend(root)
    if root := _root("gemm", gemm_root(os.environ), find_gemm_files):
        from tuner.bindings.sglang.plugin.gemm import hook_loaders  # noqa: PLC0415
        from tuner.bindings.sglang.plugin.hooks import guarded  # noqa: PLC0415

        found = root
        guarded("gemm", lambda: hook_loaders(found))
    if root := _root("scan", scan_root(os.environ), find_scan_files):
        from tuner.bindings.sglang.plugin.scan import hook_scans  # noqa: PLC0415

        hook_scans(root)


def _root(
    family: str, named: tuple[str, Path] | None, find: Callable[[Path], list[Path]]
) -> Path | None:
    """Return the root of a family's files, if there are any and this process may use them."""
    if named is None:
        log.debug("no %s files: no variable names a folder", family)
        return None
    variable, root = named
    if not find(root):
        log.debug("no %s files under %s, which %s names", family, root, variable)
        return None
    if SCHEDULER not in sys.modules:
        log.debug("%s files under %s are for the scheduler's processes", family, root)
        return None
    return root

"""The plugin that gives tuned attention to a running sglang.

sglang calls `register` in each of its processes (entry point group `sglang.srt.plugins`,
`load_plugins`). Without attention files it does nothing. With them it hooks the constructor of
the Triton attention backend; see `backend.py`.
"""

from __future__ import annotations

import logging
import os
import sys

from tuner.engines.sglang.plugin.files import attention_root, find_attention_files

log = logging.getLogger("tuner.plugin")

# The processes that build the backend run this module, and it calls `load_plugins`, so it is
# already imported there. Other processes are not hooked: applying a hook imports its target's
# module, the engine's modules read their settings on import, and a server's main process calls
# `load_plugins` before it has read its arguments.
SCHEDULER = "sglang.srt.managers.scheduler"


def register() -> None:
    """Hook this process if it runs attention. The entry point names this function."""
    found = attention_root(os.environ)
    if found is None:
        log.debug("no attention files: no variable names a folder")
        return
    variable, root = found
    if not find_attention_files(root):
        log.debug("no attention files under %s, which %s names", root, variable)
        return
    if SCHEDULER not in sys.modules:
        log.debug("attention files under %s are for the scheduler's processes", root)
        return
    from tuner.engines.sglang.plugin.backend import hook_backend  # noqa: PLC0415  # light until there are files

    hook_backend(root)

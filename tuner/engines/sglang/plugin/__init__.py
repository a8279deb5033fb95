"""The plugin that gives tuned attention to a running sglang.

sglang calls `register` in each of its processes (entry point group `sglang.srt.plugins`,
`load_plugins`). Without attention files it does nothing at all; with them it hooks what builds
the Triton attention backend (`tuner.plugin.backend`).
"""

from __future__ import annotations

import logging
import os
import sys

from tuner.engines.sglang.plugin.files import attention_root, find_attention_files

log = logging.getLogger("tuner.plugin")

# The module that a backend-building process runs. It is imported before `load_plugins` is called
# there, for it is what calls it. Elsewhere (a server's main process above all, which calls
# `load_plugins` before it has read its arguments) nothing is hooked: applying a hook imports its
# target's module, and the engine's modules read their settings when they are imported.
SCHEDULER = "sglang.srt.managers.scheduler"


def register() -> None:
    """What the entry point names: hook this process if it is one that runs attention."""
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

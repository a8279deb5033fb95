"""Give tuned kernels to a running vLLM, as its plugin.

vLLM calls `register` once in each of its processes (entry point group `vllm.general_plugins`). This
imports nothing of vLLM, torch or Triton: modules of kernels are hooked when a process that runs a
model imports them. A plugin's function that raises stops the server, so `register` catches all
exceptions.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from tuner.families.scans.files import find_scan_files, scan_root

log = logging.getLogger("tuner.plugin")

_FIRST = "VLLM_TRITON_FORCE_FIRST_CONFIG"


def register() -> None:
    """Hook this process's kernels. The entry point names this function."""
    try:
        _register()
    except Exception:
        log.exception("tuner: nothing is applied")


def _register() -> None:
    named = scan_root(os.environ)
    if named is None or not find_scan_files(named[1]):
        log.debug("no files of chunked scans: %s", named)
        return
    if why := left_alone(os.environ):
        log.info("tuner scan: nothing is applied, because %s", why)
        return
    from tuner.bindings.vllm.plugin.scan import hook_scans  # noqa: PLC0415  # light until files

    hook_scans(named[1])


def left_alone(environ: Mapping[str, str]) -> str:
    """Return why no kernel is hooked in a server with this environment; empty if kernels are.

    Such a server wants the same choice for all lengths, or the first of each list.
    """
    wishes = {
        "VLLM_BATCH_INVARIANT": environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"),
        _FIRST: environ.get(_FIRST, "").strip().lower() in ("1", "true"),  # as vLLM reads it
    }
    return next((f"{name} is set" for name, asked in wishes.items() if asked), "")

"""The plugin that gives tuned kernels to a running vLLM.

vLLM calls `register` once in each of its processes (entry point group `vllm.general_plugins`). It
imports nothing of vLLM, torch or Triton: modules of kernels are hooked when a process that runs a
model imports them. A function of a plugin that raises stops the server, so this one catches all.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from tuner.families.scans.files import find_scan_files, scan_root
from tuner.families.scans.serve import ServerFacts, hook_packages

log = logging.getLogger("tuner.plugin")

# With these, a server wants one choice for all lengths, or the first of each list.
_LEAVES_ALONE = ("VLLM_BATCH_INVARIANT", "VLLM_TRITON_FORCE_FIRST_CONFIG")


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
    from tuner.bindings.vllm.scan_sources import FOLDERS, scan_here  # noqa: PLC0415  # lifts

    for family, folders in FOLDERS.items():
        packages = [".".join(("vllm", *Path(folder).parts)) for folder in folders]
        hook_packages(scan_here(family), packages, named[1], _facts)


def left_alone(environ: Mapping[str, str]) -> str:
    """Why no kernel is hooked in a server with this environment; empty if kernels are."""
    asked = (name for name in _LEAVES_ALONE if environ.get(name, "0") not in ("", "0"))
    return next((f"{name} is set" for name in asked), "")


def _facts() -> ServerFacts:
    import torch  # noqa: PLC0415  # this process belongs to vLLM
    import triton  # noqa: PLC0415
    import vllm  # noqa: PLC0415

    def kernel_hash(family: str) -> str:
        from tuner.bindings.vllm.scan_sources import lift_scan  # noqa: PLC0415
        from tuner.engines.vllm.package import VLLM  # noqa: PLC0415

        return lift_scan(VLLM(vllm.__version__, Path(vllm.__path__[0])), family).hash

    device = torch.cuda.get_device_name().replace(" ", "_")
    return ServerFacts("vllm", vllm.__version__, device, triton.__version__, kernel_hash)

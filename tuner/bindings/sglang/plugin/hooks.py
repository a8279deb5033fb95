"""What the plugin's hooks share: sglang's registry, facts about this process, and safety."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tuner.bindings.sglang.plugin.file_checks import RuntimeFacts
from tuner.bindings.sglang.plugin.kernels import PLUGIN

if TYPE_CHECKING:
    from tuner.engines.sglang.package import SGLang
    from tuner.families.attention.problem import Attention

log = logging.getLogger("tuner.plugin")


def register_hook(target: str, hook: Callable[..., object]) -> None:
    """Register a hook: a class replaces its target, and a function is called around it."""
    hooks = hook_registry()
    # sglang knows the source by itself only while it loads plugins.
    source = hooks.HookSource(PLUGIN, "engine-tuner")
    kind = hooks.HookType.REPLACE if isinstance(hook, type) else hooks.HookType.AROUND
    hooks.HookRegistry.register(target, hook, kind, source=source)


def hook_registry() -> ModuleType:
    return import_module("sglang.srt.plugins.hook_registry")


def runtime_facts(
    kernel_hash: Callable[[SGLang], str],
    kv_splits: Callable[[Attention], frozenset[int] | None] = lambda problem: None,
) -> RuntimeFacts:
    """Facts about this process, which belongs to sglang.

    `kernel_hash`: the hash of an engine's kernels. It is asked only for other versions' files.
    """
    import sglang  # noqa: PLC0415
    import torch  # noqa: PLC0415
    import triton  # noqa: PLC0415

    def hash_here() -> str:
        from tuner.engines.sglang.package import SGLang  # noqa: PLC0415

        return kernel_hash(SGLang(sglang.__version__, Path(sglang.__path__[0])))

    device = torch.cuda.get_device_name().replace(" ", "_")  # as engines spell it in file names
    return RuntimeFacts(
        "sglang", sglang.__version__, device, triton.__version__, hash_here, kv_splits
    )


def guarded(family: str, step: Callable[[], None]) -> None:
    """Run a step and log what it raises: a server must start even if the files cannot be used."""
    try:
        step()
    except Exception:
        log.exception("tuner %s: nothing is applied", family)

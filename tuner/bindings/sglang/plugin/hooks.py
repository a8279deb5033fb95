"""Share code among the plugin's hooks: sglang's registry, facts about this process, and safety."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tuner.bindings.sglang.plugin.kernels import PLUGIN
from tuner.export.file_checks import RuntimeFacts, facts_here

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
    hash_of: Callable[[SGLang, str], str],
    kv_splits: Callable[[Attention], frozenset[int] | None] = lambda problem: None,
) -> RuntimeFacts:
    """Return facts about this process, which is sglang's. `hash_of`: the hash of its kernels."""

    def kernel_hash(version: str, root: Path, platform: str) -> str:
        from tuner.engines.sglang.package import SGLang  # noqa: PLC0415

        return hash_of(SGLang(version, root), platform)

    # The promise is that a request's result does not depend on its batch. But choices depend on
    # the batch's size, and change the order of summation.
    unless = "inference is deterministic" if is_deterministic() else ""
    return facts_here("sglang", kernel_hash, kv_splits, unless)


def is_deterministic() -> bool:
    """Say whether the server has --enable-deterministic-inference, or might have it."""
    try:
        from sglang.srt.runtime_context import get_exec  # noqa: PLC0415

        settings = get_exec().deterministic
    except ImportError:  # before 0.5.23 the settings were in the server's arguments
        from sglang.srt.server_args import get_global_server_args  # noqa: PLC0415

        settings = get_global_server_args()
    return settings.enable_deterministic_inference is not False


def guarded(family: str, step: Callable[[], None]) -> None:
    """Run a step and log its exception: a server must start even if the files cannot be used."""
    try:
        step()
    except Exception:
        log.exception("tuner %s: nothing is applied", family)

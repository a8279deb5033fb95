"""Hook sglang's Triton attention, through sglang's own HookRegistry.

There are two steps, so that no module is imported too early. Registration hooks only the
constructor of the attention backend: its module does not initialise CUDA, and a scheduler is about
to import it anyway. The kernels' modules query the GPU's capability on import, so they are hooked
when a backend is built, just before it imports them itself.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.bindings.sglang.plugin.chosen_splits import TritonAttnBackend, choose_splits
from tuner.bindings.sglang.plugin.file_checks import FileCheck, RuntimeFacts, check_file
from tuner.bindings.sglang.plugin.files import AttentionFile, find_attention_files
from tuner.bindings.sglang.plugin.hooks import guarded, hook_registry, register_hook, runtime_facts
from tuner.bindings.sglang.plugin.kernels import (
    EXTEND,
    GROUPED,
    KERNELS,
    LAUNCHERS,
    PACKAGES,
    PAGED,
    PREFILL,
    REDUCE,
    UNGROUPED,
    KernelSignature,
)
from tuner.bindings.sglang.plugin.launches import Jitted, TunedLaunches, note_launcher, stand_in
from tuner.export.file_checks import log_items
from tuner.families.attention.problem import AttentionPhase

if TYPE_CHECKING:
    from tuner.engines.sglang.package import SGLang

BACKEND = "sglang.srt.layers.attention.triton_backend.TritonAttnBackend.__init__"

log = logging.getLogger("tuner.plugin")


@dataclass
class _State:
    """The hooks of this process."""

    hooked: bool = False
    kernels: list[TunedLaunches] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    kv_splits: frozenset[int] = frozenset()  # of the backends built so far
    windowed: bool = False  # whether any of them has layers with a sliding window
    facts: RuntimeFacts | None = None
    files: list[AttentionFile] = field(default_factory=list)  # in use
    said: set[str] = field(default_factory=set)  # lines that are logged once


_state = _State()


def hook_backend(root: Path) -> None:
    """Apply the files under a root when the process builds its attention backend."""

    def around(
        build: Callable[..., None], backend: TritonAttnBackend, *args: object, **kwargs: object
    ) -> None:
        guarded("attention", hook_kernels)
        build(backend, *args, **kwargs)
        guarded("attention", lambda: _use_for(backend, root))
        guarded("attention", lambda: _choose_splits(backend, *args, **kwargs))

    register_hook(BACKEND, around)


def hook_kernels() -> None:
    """Hook the kernels and their launchers once. This imports the engine's modules."""
    if _state.hooked:
        return
    _state.hooked = True
    package = _package()
    found = {module: _hook_module(package, module) for module in LAUNCHERS}
    hook_registry().HookRegistry.apply_hooks()
    for module, hooked in found.items():
        originals = ((name, original) for name, original, _ in hooked)
        # The registry logs a failed hook, and does not raise.
        if lacking := [name for name, one in originals if _find(package, module, name) is one]:
            _state.troubles.append(f"sglang did not hook {' and '.join(lacking)}")
        else:
            _state.kernels += [launches for _, _, launches in hooked if launches]


def _hook_module(package: str, module: str) -> list[tuple[str, Any, TunedLaunches | None]]:
    """Register hooks for a launcher and its kernels; return (name, the engine's own, launches) of
    each.
    """
    function, parameters = LAUNCHERS[module]
    launcher = _find(package, module, function)
    known = inspect.signature(launcher).parameters if launcher else {}
    if lacking := [name for name in parameters if name not in known and name != PAGED]:
        _state.troubles.append(f"sglang has no {function} with a {lacking[0]}")
        return []
    register_hook(f"{package}.{module}.{function}", note_launcher(launcher, parameters))
    hooked: list[tuple[str, Any, TunedLaunches | None]] = [(function, launcher, None)]
    for kernel in (kernel for kernel in KERNELS if kernel.module == module):
        jitted: Jitted | None = _find(package, module, kernel.name)
        why = _unfit(kernel, jitted) if jitted else f"sglang has no {kernel.name}"
        if jitted is None or why:
            _state.troubles.append(why)
            continue
        launches = TunedLaunches(kernel, jitted, paged=PAGED in known)
        register_hook(f"{package}.{module}.{kernel.name}", stand_in(launches))
        hooked.append((kernel.name, jitted, launches))
    return hooked


def _find(package: str, module: str, name: str) -> Any:  # noqa: ANN401  # the engine's
    try:
        return getattr(import_module(f"{package}.{module}"), name, None)
    except ModuleNotFoundError:
        return None


def _unfit(kernel: KernelSignature, jitted: Jitted) -> str:
    if not {"grid", "warmup"} <= inspect.signature(jitted.run).parameters.keys():
        return f"this triton launches {kernel.name} in a way that this version does not know"
    return kernel.unfit(jitted.arg_names)


def _use_for(backend: TritonAttnBackend, root: Path) -> None:
    """Use the files under a root for a backend that was just built."""
    splits = _state.kv_splits | {int(backend.max_kv_splits)}
    windowed = _state.windowed or (backend.sliding_window_size or 0) > 0
    if (splits, windowed) == (_state.kv_splits, _state.windowed):
        return  # nothing new; a draft model's backend may have other splits
    _state.kv_splits, _state.windowed = splits, windowed
    # Deterministic inference promises that a request's result does not depend on its batch. But
    # a tuned configuration depends on the batch size, and it changes the order of summation.
    if backend.enable_deterministic is not False:
        log.info("tuner attention: inference is deterministic, so the engine's own constants stay")
        return
    log.info("%s", _use(root))


def _choose_splits(backend: TritonAttnBackend, runner: Any, *_: object, **__: object) -> None:  # noqa: ANN401
    said = choose_splits(backend, runner, _state.files, _kv_splits_flag(runner))
    if said and said not in _state.said:
        _state.said.add(said)
        log.info("tuner attention: KV splits of %s", said)


def _kv_splits_flag(runner: Any) -> int:  # noqa: ANN401  # the engine's
    """Return the server's --triton-attention-num-kv-splits."""
    module = import_module(BACKEND.rpartition(".Triton")[0])
    # Later releases keep their settings in a context, and not in the runner.
    settings = module.get_exec().kernel if hasattr(module, "get_exec") else runner.server_args
    return int(settings.triton_attention_num_kv_splits)


def _use(root: Path) -> str:
    _state.facts = facts = _state.facts or _runtime_facts()
    checks = [check_file(path, facts, _unhooked) for path in find_attention_files(root)]
    _state.files = [check.file for check in checks if check.used and check.file]
    for launches in _state.kernels:
        launches.use(_state.files)
    return _line(checks, _state.troubles)


def _line(checks: Sequence[FileCheck[AttentionFile]], troubles: Sequence[str]) -> str:
    used = [] if any(check.used for check in checks) else ["no file applies"]
    items = *used, *log_items("attention", checks), *troubles
    return f"tuner attention: {'; '.join(items)}"


def _unhooked(file: AttentionFile) -> str:
    """Return why no kernel may have the file's constants; the splits of decode need both of its
    kernels.
    """
    if _state.windowed and file.problem.phase is AttentionPhase.DECODE and not file.splits:
        return "decode's kernels do not tell the layers with a sliding window of this server apart"
    grouped = GROUPED if file.problem.group > 1 else UNGROUPED
    asked = {AttentionPhase.DECODE: (grouped, REDUCE), AttentionPhase.EXTEND: (EXTEND,)}
    hooked = [launches.kernel for launches in _state.kernels]
    lacking = [k.name for k in asked.get(file.problem.phase, (PREFILL,)) if k not in hooked]
    return f"sglang's {' and '.join(lacking)} cannot be hooked" if lacking else ""


def _runtime_facts() -> RuntimeFacts:
    def kernel_hash(engine: SGLang, platform: str) -> str:
        from tuner.bindings.sglang.attention.binding import lift_attention  # noqa: PLC0415

        return lift_attention(engine, platform).hash

    return runtime_facts(kernel_hash, lambda problem: _state.kv_splits)


def _package() -> str:
    for package in PACKAGES:
        try:
            if find_spec(f"{package}.{KERNELS[0].module}"):
                return package
        except ModuleNotFoundError:  # a parent package does not exist
            continue
    raise ModuleNotFoundError(f"no attention kernels in {' or '.join(PACKAGES)}")

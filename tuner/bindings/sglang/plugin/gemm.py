"""Hook the loaders of sglang's config files for dense GEMMs, through sglang's own HookRegistry.

A hooked loader answers with our file's entries if the file is made for this GPU, this Triton and
these kernels. Otherwise the engine's own loader answers. No kernel is touched.

A file's tiles depend on the size of the batch, so deterministic inference turns these files off.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tuner.bindings.sglang.plugin.file_checks import RuntimeFacts, check_gemm_file
from tuner.bindings.sglang.plugin.gemm_files import GemmFile, find_gemm_files
from tuner.bindings.sglang.plugin.gemm_loaders import LOADERS, PACKAGES, Loader
from tuner.bindings.sglang.plugin.hooks import register_hook, runtime_facts
from tuner.export.file_checks import log_items
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.problems.dtypes import Dtype

if TYPE_CHECKING:
    from tuner.engines.sglang.package import SGLang

log = logging.getLogger("tuner.plugin")

Entries = Mapping[int, object]  # by M, as the engine's launchers take them
# Attributes that `functools.lru_cache` adds. Other code may call them on the hooked loader.
_CACHE = ("cache_clear", "cache_info", "cache_parameters")


def hook_loaders(root: Path) -> None:
    """Give the files under a root to the engine's loaders in this process.

    Only modules that the scheduler has imported already are hooked, so that no module is imported
    early. The files are read when a loader is asked for the first time: by then the GPU is chosen.
    """
    files = ServedFiles(root)
    for loader in LOADERS:
        module = _imported(loader)
        if module is None:
            log.debug("tuner gemm: this sglang has no %s", loader.function)
            continue
        original = getattr(module, loader.function)
        _keep_cache_functions(original)
        register_hook(f"{module.__name__}.{loader.function}", around(loader, original, files))


def around(
    loader: Loader, original: Callable[..., object], files: ServedFiles
) -> Callable[..., object]:
    """Return the hook around a loader."""
    from torch import compiler  # noqa: PLC0415  # this process belongs to sglang

    signature = inspect.signature(original)
    answers: dict[object, Entries | None] = {}  # a launch asks each time, so the answer is kept

    def answer(args: tuple[int, ...], kwargs: Mapping[str, int]) -> Entries | None:
        try:
            return files.entries(_problem(loader, signature.bind(*args, **kwargs).arguments))
        except Exception:  # a server must start even if the files cannot be used
            log.exception("tuner gemm: nothing is applied")
            return None

    def hooked(original: Callable[..., object], *args: int, **kwargs: int) -> object:
        # Code that torch.compile traces must not read files. The engine's loaders handle tracing.
        if compiler.is_compiling():
            return original(*args, **kwargs)
        key = args, tuple(kwargs.items())
        if key not in answers:
            answers[key] = answer(args, kwargs)
        entries = answers[key]
        return original(*args, **kwargs) if entries is None else entries

    return hooked


@dataclass(frozen=True)
class ServedFiles:
    """The files under a root that this process may use. They are read once."""

    root: Path

    def entries(self, problem: DenseGemm) -> Entries | None:
        """Return the entries for a problem, and log that a file is used; None if there is no file
        for it.
        """
        found = self._usable.get(problem)
        if found is None:
            return None
        file, text = found
        log.info("tuner gemm: %s", text)
        return file.engine_entries()

    @cached_property
    def _usable(self) -> Mapping[DenseGemm, tuple[GemmFile, str]]:
        """Return, by problem, a file, and the text that says that it is used."""
        found: dict[DenseGemm, tuple[GemmFile, str]] = {}
        try:
            facts = _runtime_facts()
            checks = [check_gemm_file(path, facts) for path in find_gemm_files(self.root)]
        except Exception:
            log.exception("tuner gemm: nothing is applied")
            return found
        for check in checks:
            if check.used and check.file:
                found[replace(check.file.problem, out=Dtype.BFLOAT16)] = check.file, str(check)
        said = [*([] if found else ["no file applies"]), *log_items("gemm", checks, used=False)]
        if said:
            log.info("tuner gemm: %s", "; ".join(said))
        return found


def _problem(loader: Loader, sizes: Mapping[str, int]) -> DenseGemm:
    """Return the problem that a loader is asked for, with the output type of file names."""
    block = (sizes["block_n"], sizes["block_k"]) if loader.blocks else None
    return DenseGemm(sizes["N"], sizes["K"], loader.dtype, block)


def _imported(loader: Loader) -> ModuleType | None:
    """Return the module that defines a loader, if this process has imported it."""
    names = [f"{package}.{loader.module}" for package in PACKAGES]
    modules = [sys.modules[name] for name in names if name in sys.modules]
    return next((module for module in modules if hasattr(module, loader.function)), None)


def _keep_cache_functions(original: object) -> None:
    """Let sglang's wrapper, which copies a function's attributes, have the cache functions too."""
    for name in _CACHE:
        if hasattr(original, name):
            setattr(original, name, getattr(original, name))


def _runtime_facts() -> RuntimeFacts:
    def kernel_hash(engine: SGLang, platform: str) -> str:
        from tuner.bindings.sglang.dense_gemm.sources import lift_kernels  # noqa: PLC0415

        return lift_kernels(engine, platform).hash

    return runtime_facts(kernel_hash)

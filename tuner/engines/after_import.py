"""Do something when a module has been imported, without importing it.

A plugin in a server uses this: the modules of kernels ask for the GPU when they are imported, and
not each process of a server imports them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Hook = Callable[[ModuleType], None]
log = logging.getLogger("tuner.plugin")


def after_import(name: str, hook: Hook) -> None:
    """Call `hook` with the module of that name: now if it is imported, else once it is.

    The hook's exceptions are logged: a server must start even if nothing can be applied.
    """
    if name in sys.modules:
        _call(hook, sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, hook))


def _call(hook: Hook, module: ModuleType) -> None:
    try:
        hook(module)
    except Exception:
        log.exception("tuner: nothing is applied to %s", module.__name__)


class _Finder(MetaPathFinder):
    """Finds one module as the other finders do, until it has been imported."""

    def __init__(self, name: str, hook: Hook) -> None:
        self._name, self._hook = name, hook

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._imported)
        return spec

    def _imported(self, module: ModuleType) -> None:
        if self in sys.meta_path:  # to look a module up does not import it, and an import may fail
            sys.meta_path.remove(self)
            _call(self._hook, module)


class _Loader(Loader):
    """Loads a module as its own loader does, and calls the hook."""

    def __init__(self, loader: Loader, hook: Hook) -> None:
        self._loader, self._hook = loader, hook

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader  # as if it were never wrapped
        self._loader.exec_module(module)
        self._hook(module)

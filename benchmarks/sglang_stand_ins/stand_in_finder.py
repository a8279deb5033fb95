"""Stand-ins for packages that sglang 0.5.16 imports and that no measured server uses.

They let a server start on a machine where these packages cannot be installed. A name of a stand-in
can be imported, subclassed and used as a decorator. Calling it fails with its full name. A package
that is installed is never replaced.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

# What sglang imports without asking whether it is there: whole packages, and single modules of
# flashinfer, of which sglang tries others to see what it may use.
PACKAGES = ("IPython", "gguf", "llguidance", "outlines", "outlines_core", "soundfile", "xgrammar")
MODULES = ("flashinfer", "flashinfer.prefill", "flashinfer.sampling")


class MissingPart(RuntimeError):
    """The server called something that has no stand-in."""


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages in PACKAGES with all their modules; put it last in `sys.meta_path`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in PACKAGES and name not in MODULES:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _StandInModule(ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(f"{self.__name__}.{name}")
        return _stand_in(f"{self.__name__}.{name}")


class _NamedMeta(type):
    """A class whose attributes are stand-ins too, for `package.Kind.MEMBER`."""

    def __getattr__(cls, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(f"{cls.__qualname__}.{name}")
        return _stand_in(f"{cls.__qualname__}.{name}")


def _any(cls: type, source: object, handler: object) -> dict[str, str]:
    """pydantic's schema of a field: the models of sglang's API have such fields."""
    return {"type": "any"}


def _stand_in(name: str) -> type:
    def fail(*args: object, **kwargs: object) -> NoReturn:
        raise MissingPart(f"the server calls {name}, which has no stand-in")

    known = {
        "__init__": fail,
        "__qualname__": name,
        "__get_pydantic_core_schema__": classmethod(_any),
    }
    return _NamedMeta(name.rpartition(".")[2], (), known)

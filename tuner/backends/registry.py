"""List the backends, the problems that they take, and whether they are installed.

Nothing is imported to find out: a package is looked for on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from types import ModuleType

from tuner.problems.points import title_of
from tuner.problems.results import Environment

_GEMMS = ("block_gemm", "channel_gemm")
_ATTENTION = ("extend_attention", "decode_attention")


@dataclass(frozen=True)
class Backend:
    """A kernel library. Its module in this package has its name."""

    name: str  # as results and stores have it: "fa3"
    families: Sequence[str]  # the families of problems of which it runs some
    packages: Sequence[str]  # it is installed if Python finds one of these

    @property
    def title(self) -> str:
        """Return its name for people: "FlashAttention 3"."""
        return title_of(self.name)

    @property
    def missing(self) -> str:
        """Say why it cannot be used here; "" if it can be tried."""
        if self._package:
            return ""
        return f"not installed: no {' and no '.join(self.packages)}"

    @property
    def version(self) -> str:
        """Return the package that has it, and its version: "sgl-deep-gemm 0.1.4"; "" if missing."""
        package = self._package
        if not package:
            return ""
        for name in _distributions().get(package, []):
            try:
                return f"{name} {version(name)}"
            except PackageNotFoundError:
                continue
        return package

    @property
    def apart(self) -> bool:
        """Say whether it is installed in a package of its own, and not in torch."""
        return self._package not in ("", "torch")

    def module(self) -> ModuleType:
        """Import its module. Raises ImportError if the library cannot be loaded."""
        return import_module(f"tuner.backends.{self.name}")

    @property
    def _package(self) -> str:
        return next((name for name in self.packages if _found(name)), "")


BACKENDS = (
    Backend("deep_gemm", ("block_gemm",), ("deep_gemm",)),
    Backend("cutlass", _GEMMS, ("sgl_kernel", "vllm")),
    Backend("cublas", _GEMMS, ("torch",)),
    Backend("fa3", _ATTENTION, ("sgl_kernel", "flash_attn_interface", "vllm")),
    Backend("flashinfer", _ATTENTION, ("flashinfer",)),
)


def find_backend(name: str) -> Backend | None:
    """Return the backend of a name; None if no module here runs it."""
    return next((backend for backend in BACKENDS if backend.name == name), None)


def no_module(name: str, family: str) -> str:
    """Say that nothing here runs a backend for a family of problems; "" if a module does."""
    backend = find_backend(name)
    if backend is not None and family in backend.families:
        return ""
    return f"{title_of(name)} is not measured for {family}: there is no module for it here"


def other_version(name: str, versions: str) -> str:
    """Return the installed version of a backend, if it differs from `versions`; else "".

    `versions` lists the backends of the environment in which times were measured.
    """
    backend = find_backend(name)
    here = backend.version if backend and backend.apart else ""
    return "" if here in ("", *versions.split(", ")) else here


def stale_words(name: str, environments: Iterable[Environment]) -> str:
    """Say why times of a backend do not hold for its installed version; "" if they may."""
    for environment in environments:
        if here := other_version(name, environment.backends):
            measured = environment.backends
            return f"{title_of(name)} was measured as of {measured}, and {here} is installed here"
    return ""


def backends_of(family: str) -> list[Backend]:
    """Return the backends that run problems of a family, installed or not."""
    return [backend for backend in BACKENDS if family in backend.families]


@cache
def _found(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # a module without a spec stands in for the package
        return False


@cache
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()

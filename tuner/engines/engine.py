"""The only list of engines, and what an LLM engine is on disk. Engines are read, never imported."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Protocol

from tuner.engines.locate import Package, PackageSource, find_packages
from tuner.engines.versions import version_order
from tuner.errors import UnknownEngine, UnsupportedFamily, did_you_mean

_PACKAGES = {"sglang": "tuner.engines.sglang"}


class Engine(Protocol):
    """One version of an engine on disk, whatever the family of kernels.

    What it has for a family is a module of that name in its package: `engine_module`.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def root(self) -> Path:
        """The package's own folder on disk."""
        ...

    def loads_plugins(self) -> bool:
        """Whether its servers load plugins, and so can be given what no file of theirs holds."""
        ...


def register(name: str, package: str) -> None:
    """Add an engine that lies outside this list."""
    _PACKAGES[name] = package


def engine_names() -> Sequence[str]:
    """Every engine, the usual one first."""
    return tuple(_PACKAGES)


def engine_module(engine: str, family: str) -> ModuleType:
    """What an engine has for a family. Raises UnsupportedFamily and names the engines that do."""
    if not supports(engine, family):
        others = [name for name in _PACKAGES if supports(name, family)]
        raise UnsupportedFamily(
            f"{family} is not tuned for {engine}, only for {' and '.join(others) or 'no engine'}"
        )
    return import_module(f"{_PACKAGES[engine]}.{family}")


def kernel_hash(engine: Engine, family: str) -> str:
    """The identity of the kernels that an engine has for a family: sha256 of all that is lifted.

    Raises UnsupportedKernel where its source is not as known.
    """
    found: str = engine_module(engine.name, family).open_family(engine).lift().hash
    return found


@cache
def supports(engine: str, family: str) -> bool:
    """Whether a family is tuned for an engine, as far as this program knows."""
    return find_spec(f"{_PACKAGES[engine]}.{family}") is not None


def find_engine(spec: str, environ: Mapping[str, str] = os.environ) -> Engine:
    """Find "sglang", or exactly "sglang==0.5.16", on this machine.

    Without a version: the installed one; else the newest in TUNER_ENGINE_PATH's folders; else,
    of those unpacked by `make`, the default version, or the newest if that one is not there.
    Raises UnknownEngine and names the versions found.
    """
    name, version = parse_spec(spec)
    package = import_module(f"{_PACKAGES[name]}.package")
    found = find_packages(name, environ)
    if not found:
        raise UnknownEngine(
            f"no {name} on this machine: install it, or unpack its wheel into a folder "
            f"that TUNER_ENGINE_PATH names"
        )
    matching = found if version is None else [p for p in found if p.version == version]
    if version is not None and not matching:
        versions = sorted({package.version for package in found}, key=version_order)
        near = did_you_mean(version, versions)
        raise UnknownEngine(f"no {name}=={version} here, only {', '.join(versions)}{near}")
    chosen = _preferred(matching, package.DEFAULT_VERSION)
    opened: Engine = package.ENGINE(chosen.version, chosen.root)
    return opened


def parse_spec(spec: str) -> tuple[str, str | None]:
    """(name, version or None). Raises UnknownEngine for a name that is not in the list."""
    name, equals, version = (part.strip() for part in spec.partition("=="))
    if name not in _PACKAGES:
        near = did_you_mean(name, _PACKAGES) or f"; write {' or '.join(_PACKAGES)}"
        raise UnknownEngine(f"unknown engine {name!r}{near}")
    return name, version if equals else None


def _preferred(packages: list[Package], default: str) -> Package:
    source = min(package.source for package in packages)
    best = [package for package in packages if package.source is source]
    if source is PackageSource.UNPACKED:
        best = [package for package in best if package.version == default] or best
    return max(best, key=lambda package: version_order(package.version))

"""The list of engines, an engine on disk, and the Triton that it runs. None is ever imported."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Protocol

from tuner.engines.locate import Package, PackageSource, find_packages, version_order
from tuner.errors import UnknownEngine, UnsupportedFamily, did_you_mean

# The release of each that this program was checked with most: what to add if nobody names one.
CHECKED = {"sglang": "0.5.16", "vllm": "0.33.0"}
_PACKAGES = {name: f"tuner.engines.{name}" for name in ("sglang", "vllm")}


class Engine(Protocol):
    """One version of an engine on disk: what all families of kernels have in common.

    The rest is in the engine's package, one module for each family; see `engine_module`.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def root(self) -> Path:
        """The folder of the engine's package on disk."""
        ...

    def loads_plugins(self) -> bool:
        """Whether its servers load plugins. Attention's configurations need one."""
        ...


def register(name: str, package: str) -> None:
    """Add an engine. `package` is the dotted name of its package."""
    _PACKAGES[name] = package


def engine_names() -> Sequence[str]:
    """The names of all engines, the default first."""
    return tuple(_PACKAGES)


def engine_package(engine: str) -> str:
    """The dotted name of an engine's package, whether or not this program tunes for the engine."""
    return _PACKAGES.get(engine, f"{__package__}.{engine}")


def engine_module(engine: str, family: str) -> ModuleType:
    """The engine's module for a family.

    Raises UnsupportedFamily, which names the engines that have one.
    """
    if not supports(engine, family):
        others = [name for name in _PACKAGES if supports(name, family)]
        raise UnsupportedFamily(
            f"{family} is not tuned for {engine}, only for {' and '.join(others) or 'no engine'}"
        )
    return import_module(f"{_PACKAGES[engine]}.{family}")


def kernel_hash(engine: Engine, family: str) -> str:
    """The sha256 of an engine's kernels for a family, as lifted from its source.

    Raises UnsupportedKernel if the source has an unknown layout.
    """
    found: str = engine_module(engine.name, family).open_family(engine).lift().hash
    return found


@cache
def supports(engine: str, family: str) -> bool:
    """Whether this program can tune a family for an engine."""
    return find_spec(f"{_PACKAGES[engine]}.{family}") is not None


def find_engine(spec: str, environ: Mapping[str, str] = os.environ) -> Engine:
    """Find "sglang", or exactly "sglang==0.5.16", on this machine.

    Without a version, this is the installed one, else the newest in TUNER_ENGINE_PATH's folders,
    else the default version or the newest that `tuner engines add` added. Raises UnknownEngine,
    which names the versions found.
    """
    name, version = parse_spec(spec)
    package = import_module(f"{_PACKAGES[name]}.package")
    matching = matching_packages(name, version, environ)
    chosen = _preferred(matching, package.DEFAULT_VERSION)
    opened: Engine = package.ENGINE(chosen.version, chosen.root)
    return opened


def matching_packages(
    name: str, version: str | None, environ: Mapping[str, str] = os.environ
) -> list[Package]:
    """The copies of an engine's package, of one version or of all, in the order of PackageSource.

    Raises UnknownEngine if there is none. It names the versions found and how to add one.
    """
    found = find_packages(name, environ)
    matching = found if version is None else [p for p in found if p.version == version]
    if matching:
        return matching
    add = f"`tuner engines add {name}=={version or CHECKED.get(name, 'VERSION')}` adds it"
    if not found:
        wanted = f"{name}=={version}" if version else name
        raise UnknownEngine(f"no {wanted} on this machine: {add}")
    versions = sorted({package.version for package in found}, key=version_order)
    raise UnknownEngine(f"no {name}=={version} here, only {', '.join(versions)}: {add}")


def parse_spec(spec: str) -> tuple[str, str | None]:
    """Split "sglang==0.5.16" into (name, version or None). Raises UnknownEngine."""
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


# Beside an unpacked engine's package: {"triton": "3.8.0"}, as `tuner engines add` writes it.
RECORD = "tuner-engine.json"


def find_triton(version: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder whose `triton` package has exactly this version; None where there is none.

    It is searched in this Python, and as `triton-<version>` where unpacked engines are. A folder
    of that name holds nothing else, so that it may come first on a process's path.
    """
    found = (p for p in find_packages("triton", environ) if p.version == version)
    alone = f"triton-{version}"
    places = (
        p.root.parent
        for p in found
        if p.source is PackageSource.INSTALLED or p.root.parent.name == alone
    )
    return next(places, None)


def pinned_triton(package: Package) -> str | None:
    """The version of Triton that a copy of an engine runs with; None where nothing is known.

    An installed engine runs the Triton installed beside it. An unpacked one has a record.
    """
    if package.source is PackageSource.INSTALLED:
        here = (p for p in find_packages("triton", {}) if p.source is PackageSource.INSTALLED)
        return next((triton.version for triton in here), None)
    try:
        record = json.loads((package.root.parent / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    version = record.get("triton") if isinstance(record, dict) else None
    return version if isinstance(version, str) else None


def engine_triton(engine: Engine, environ: Mapping[str, str] = os.environ) -> str | None:
    """`pinned_triton` of an engine that `find_engine` gave."""
    found = (p for p in find_packages(engine.name, environ) if p.root == engine.root)
    return next((pinned_triton(package) for package in found), None)

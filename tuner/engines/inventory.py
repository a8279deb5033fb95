"""List every engine and Triton on this machine, and say which of them are used."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.engines.engine import (
    CHECKED,
    Package,
    PackageSource,
    engine_names,
    find_engine,
    find_packages,
    find_triton,
    pinned_triton,
)
from tuner.errors import UnknownEngine, did_you_mean

_SOURCES = {
    PackageSource.INSTALLED: "installed",
    PackageSource.ENGINE_PATH: "engine_path",
    PackageSource.UNPACKED: "added",
}


@dataclass(frozen=True)
class Release:
    """A copy of an engine or of Triton on this machine."""

    name: str
    version: str
    source: str  # installed, engine_path or added
    path: Path
    used: bool  # it is taken if no version is named
    triton: str | None  # the version that an engine pins; None: not known
    triton_here: bool


def split_spec(spec: str) -> tuple[str, str]:
    """Split NAME==VERSION. Raises UnknownEngine for another form or an unknown name."""
    name, equals, version = (part.strip() for part in spec.partition("=="))
    names = (*engine_names(), "triton")
    if name not in names:
        near = did_you_mean(name, names) or f"; write {' or '.join(names)}"
        raise UnknownEngine(f"unknown engine {name!r}{near}")
    if not equals or not version:
        such = f", such as {name}=={CHECKED[name]}" if name in CHECKED else ""
        raise UnknownEngine(f"{spec!r} names no version: write {name}==VERSION{such}")
    return name, version


def releases(environ: Mapping[str, str] = os.environ) -> list[Release]:
    """List engines first, each in the order in which it is searched; then Tritons."""
    engines = [(name, one) for name in engine_names() for one in find_packages(name, environ)]
    tritons = [("triton", one) for one in find_packages("triton", environ)]
    used = {_default(name, environ) for name in engine_names()}
    used |= {one.root for _, one in tritons if one.source is PackageSource.INSTALLED}
    return [_release(name, one, one.root in used, environ) for name, one in [*engines, *tritons]]


def _default(name: str, environ: Mapping[str, str]) -> Path | None:
    try:
        return find_engine(name, environ).root
    except UnknownEngine:
        return None


def _release(name: str, one: Package, used: bool, environ: Mapping[str, str]) -> Release:
    triton = None if name == "triton" else pinned_triton(one)
    here = triton is not None and find_triton(triton, environ) is not None
    return Release(name, one.version, _SOURCES[one.source], one.root.parent, used, triton, here)

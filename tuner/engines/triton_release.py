"""Which Triton an engine's release runs, and where that Triton is on disk. It is never imported."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from tuner.engines.engine import Engine
from tuner.engines.locate import Package, PackageSource, find_packages

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

"""Sidecars of exported files. They tell which files in an engine's package are this program's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROVENANCE = "provenance"  # the sidecars' folder under a root


def read_sidecar(path: Path, sidecar: Path) -> Mapping[str, Any] | None:
    """The content of a sidecar; None where there is none, or the file has changed since."""
    try:
        data = path.read_bytes()
        provenance = json.loads(sidecar.read_text(encoding="utf-8"))
        described = provenance["sha256"] == hashlib.sha256(data).hexdigest()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return provenance if described and isinstance(provenance, dict) else None


def sidecar_of(path: Path) -> Path | None:
    """The sidecar of an exported file; None where it has none.

    The sidecar of ROOT/configs/triton_3_6_0/NAME is ROOT/provenance/triton_3_6_0/NAME, that of
    ROOT/attention/triton_3_6_0/NAME is below ROOT/provenance/attention, and that of vLLM's
    ROOT/NAME is ROOT/provenance/NAME.
    """
    for root in list(path.parents)[:3]:
        below = path.relative_to(root)
        for relative in (below, Path(*below.parts[1:])):
            if (found := root / PROVENANCE / relative).is_file():
                return found
    return None


def kept_file(sidecar: Path) -> Path:
    """Where an export into an engine's package keeps the engine's file that it replaces.

    Its name does not end in .json because all .json files there are sidecars.
    """
    return sidecar.with_name(f"{sidecar.name}.shipped")


def shipped_at(path: Path) -> Path | None:
    """The file that an engine ships at a path of its package; None if it ships none.

    Where this program's file lies at the path, it is the file that was kept.
    """
    sidecar = sidecar_of(path)
    if sidecar and read_sidecar(path, sidecar):
        path = kept_file(sidecar)
    return path if path.exists() else None

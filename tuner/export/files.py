"""Writing exported files, and the content of their sidecars."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tuner.errors import UnwritableOutput
from tuner.problems.records import Winner
from tuner.problems.results import entry_json, incumbent_json

PROVENANCE = "provenance"  # the sidecars' folder under a root


def sidecar_fields(name: str, text: str) -> dict[str, Any]:
    """The first fields of every sidecar: its file, and the tool that wrote both."""
    return {
        "file": name,
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "tool": f"engine-tuner {version('engine-tuner')}",
    }


def provenance_row(winner: Winner) -> dict[str, Any]:
    """A sidecar's object for one entry."""
    entry = winner.entry
    incumbents = {name: incumbent_json(i) for name, i in sorted(entry.incumbents.items())}
    for incumbent in incumbents.values():
        del incumbent["shared_bytes"]
    return {
        **entry_json(entry),
        "incumbents": incumbents,
        "environment": asdict(winner.environment),
        "published_at": winner.published_at.isoformat(),
    }


def read_sidecar(path: Path, sidecar: Path) -> Mapping[str, Any] | None:
    """The content of a sidecar; None where there is none, or the file has changed since."""
    try:
        data = path.read_bytes()
        provenance = json.loads(sidecar.read_text(encoding="utf-8"))
        described = provenance["sha256"] == hashlib.sha256(data).hexdigest()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return provenance if described and isinstance(provenance, dict) else None


def sidecar_text(provenance: Mapping[str, Any]) -> str:
    return json.dumps(provenance, indent=2) + "\n"


def prove_writable(root: Path) -> None:
    """Raises UnwritableOutput where nothing can be written under a folder."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise UnwritableOutput(f"cannot write to {root}: {error.strerror}") from None


def replace_file(path: Path, data: bytes) -> None:
    """Write a file atomically: a reader sees the old bytes or the new ones.

    Raises UnwritableOutput.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.chmod(0o644)  # mkstemp's 0600 would hide the file from the engine's user
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UnwritableOutput(f"cannot write {path}: {error.strerror}") from None

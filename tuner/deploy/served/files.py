"""The tuned files of a folder, and the hash by which a proof is found again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from tuner.deploy.load_proof import read_deployed
from tuner.errors import BadInput
from tuner.export.files import PROVENANCE


def tuned_files(root: Path, device: str) -> dict[str, bytes]:
    """The tuned files for a device under a folder that `tuner export` wrote, by their paths.

    Raises BadInput where there is none.
    """
    paths = read_deployed(root).tuned if root.is_dir() else {}
    mine = [path for path in paths if f"device_name={device}" in path]
    if not mine:
        raise BadInput(
            f"nothing exported for {device} under {root}: run `tuner export --device {device}` "
            "first, or name its folder with --out"
        )
    return {path: (root / path).read_bytes() for path in mine}


def exported_problems(root: Path) -> frozenset[str]:
    """The problems whose files are under a folder, as their sidecars name them."""
    specs = set()
    for path in (root / PROVENANCE).rglob("*.json"):
        try:
            specs.add(str(json.loads(path.read_bytes())["problem"]))
        except (ValueError, KeyError, TypeError):
            continue  # no sidecar of this tool
    return frozenset(specs)


def files_hash(files: Mapping[str, bytes]) -> str:
    """The sha256 of the files' paths and contents."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path} {hashlib.sha256(files[path]).hexdigest()}\n".encode())
    return digest.hexdigest()

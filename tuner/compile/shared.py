"""A cache of compile results that hosts share: a folder, or storage that fsspec can reach.

An object's name says what was compiled. An object is believed only if its HMAC is right for its
name, its time and its content, so a torn, flipped, moved or foreign one counts as absent. Hosts
need no lock: an object is written under another name and then moved, or, where the storage knows
no move, put in one step.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import secrets
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tuner.errors import BadInput
from tuner.setting import read_value

log = logging.getLogger("tuner.compile")

URL_VARIABLE = "TUNER_SHARED_CACHE"
KEY_VARIABLE = "TUNER_SHARED_CACHE_KEY"
LIMIT_VARIABLE = "TUNER_SHARED_CACHE_GB"
SHORTEST_KEY = 32  # characters
DEFAULT_LIMIT_GB = 20
LARGEST_OBJECT = 64 << 20  # bytes; a kernel's files take less than 1 MB
TRIM_EVERY = 256  # objects that one process writes between two looks at the cache's size
TRIM_TO = 0.9  # of the limit
PAUSE_S = 60.0  # for a storage that failed
ABANDONED_S = 3600.0  # after which a temporary file's writer is dead
# Where reading leaves no trace, an object that is read is written again once it is so old. So the
# oldest objects are the ones that nobody has read for so long.
REFRESH_S = 86_400.0

_MAGIC = b"tuner compiled 1\n"
_HEAD = struct.Struct(">d32s")  # when it was written, in seconds since 1970; the HMAC

_T = TypeVar("_T")


class SharedCache:
    """Bytes under keys. Threads and processes of many hosts may use one cache at once.

    A storage that fails is left alone for a minute: it then has nothing and takes nothing.
    """

    def __init__(self, url: str, key: str, limit_bytes: int = DEFAULT_LIMIT_GB * 10**9) -> None:
        """`url` is a folder or a URL of fsspec (s3://bucket/folder). `limit_bytes` is for all
        objects together. Raises BadInput for a key that is too short, and where a package for the
        URL is missing.
        """
        if len(key) < SHORTEST_KEY:
            raise BadInput(
                f"{KEY_VARIABLE} has {len(key)} characters and needs {SHORTEST_KEY} or more: "
                "make one with `openssl rand -hex 32`"
            )
        self._key = key.encode()
        self._limit_bytes = limit_bytes
        self._storage, self._root = _open_storage(url)
        self._is_local = "file" in _protocols(self._storage)
        self._written = 0
        self._lock = threading.Lock()
        self._again_at = 0.0

    @property
    def identity(self) -> str:
        """Equal for processes that have the same key, which is how hosts see that they share."""
        return self._mac(b"identity").hex()[:12]

    def get(self, key: str) -> bytes | None:
        """What was put under the key; None where that is absent or not what was written."""
        whole = self._try(lambda: self._read(key))
        if whole is None:
            return None
        start = len(_MAGIC) + _HEAD.size
        if len(whole) < start or not whole.startswith(_MAGIC):
            self._refuse(key, "no object of this cache")
            return None
        written, mac = _HEAD.unpack(whole[len(_MAGIC) : start])
        data = whole[start:]
        if not hmac.compare_digest(mac, self._mac(key.encode(), _time(written), data)):
            self._refuse(key, "its HMAC is wrong")
            return None
        self._try(lambda: self._use(key, written, data))
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keep bytes under a key, in place of what is there."""
        if self._try(lambda: self._write(key, data)) is None:
            return
        with self._lock:
            self._written += 1
            due = self._written % TRIM_EVERY == 1
        if due:
            self.trim()

    def trim(self) -> None:
        """Delete the objects that were used least recently, down to 90 % of the limit."""
        with contextlib.suppress(FileNotFoundError):
            self._try(self._trim)

    def _read(self, key: str) -> bytes | None:
        try:
            found = self._storage.cat_file(self._path(key), start=0, end=LARGEST_OBJECT + 1)
        except FileNotFoundError:
            return None
        return bytes(found)

    def _write(self, key: str, data: bytes) -> bool:
        now = time.time()
        head = _HEAD.pack(now, self._mac(key.encode(), _time(now), data))
        path, whole = self._path(key), _MAGIC + head + data
        if not self._is_local:
            self._storage.pipe_file(path, whole)
            return True
        self._storage.makedirs(path.rpartition("/")[0], exist_ok=True)
        scratch = f"{path}.{secrets.token_hex(8)}.tmp"
        try:
            self._storage.pipe_file(scratch, whole)
            os.replace(scratch, path)  # noqa: PTH105 (a path of the storage)
        except BaseException:
            with contextlib.suppress(OSError):
                self._storage.rm_file(scratch)
            raise
        return True

    def _use(self, key: str, written: float, data: bytes) -> None:
        """Make an object the most recently used one."""
        if self._is_local:
            with contextlib.suppress(FileNotFoundError):  # another process has just deleted it
                os.utime(self._path(key))
        elif abs(time.time() - written) > REFRESH_S:
            self._write(key, data)

    def _trim(self) -> None:
        self._storage.invalidate_cache()
        found = self._storage.find(self._root, detail=True)
        objects = sorted((_changed(info), name, info["size"]) for name, info in found.items())
        total = sum(size for _, _, size in objects)
        bound = self._limit_bytes * TRIM_TO if total > self._limit_bytes else total
        for changed, name, size in objects:
            abandoned = name.endswith(".tmp") and time.time() - changed > ABANDONED_S
            if total <= bound and not abandoned:
                continue
            with contextlib.suppress(FileNotFoundError):  # another process trims as well
                self._storage.rm_file(name)
            total -= size

    def _path(self, key: str) -> str:
        return f"{self._root}/{key[:2]}/{key}"

    def _mac(self, *parts: bytes) -> bytes:
        found = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in parts:
            found.update(len(part).to_bytes(8, "big") + part)
        return found.digest()

    def _refuse(self, key: str, why: str) -> None:
        log.warning("shared cache: %s is not used: %s", key, why)

    def _try(self, step: Callable[[], _T]) -> _T | None:
        """The step's answer; None where the storage fails, or failed a short while ago."""
        if time.monotonic() < self._again_at:
            return None
        try:
            return step()
        except FileNotFoundError:
            raise
        except Exception as error:  # each storage has its own errors, and a cache only saves time
            self._again_at = time.monotonic() + PAUSE_S
            what = f"{type(error).__name__}: {error}"
            log.warning("shared cache: left alone for %.0f s: %s", PAUSE_S, what)
            return None


def open_shared_cache(environ: Mapping[str, str] = os.environ) -> SharedCache | None:
    """The cache that the environment names; None without one.

    Raises BadInput for a cache without a key, and what `SharedCache` raises.
    """
    url = read_value(URL_VARIABLE, environ)
    if url is None:
        return None
    key = read_value(KEY_VARIABLE, environ)
    if key is None:
        raise BadInput(f"{URL_VARIABLE} needs {KEY_VARIABLE}, or {KEY_VARIABLE}_FILE")
    limit = read_value(LIMIT_VARIABLE, environ) or str(DEFAULT_LIMIT_GB)
    if not (limit.isascii() and limit.isdigit() and int(limit)):
        raise BadInput(f"{LIMIT_VARIABLE} is a whole number of gigabytes from 1, not {limit!r}")
    return SharedCache(url, key, int(limit) * 10**9)


def _open_storage(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415  # an extra

        storage, root = url_to_fs(url)
    except ImportError as error:
        raise BadInput(
            f"{URL_VARIABLE}: {error}: pip install 'engine-tuner[shared-cache]'"
        ) from None
    except ValueError as error:
        raise BadInput(f"{URL_VARIABLE}: {error}") from None
    return storage, str(root).rstrip("/")


def _protocols(storage: Any) -> tuple[str, ...]:  # noqa: ANN401 (fsspec has no types)
    names = storage.protocol
    return (names,) if isinstance(names, str) else tuple(names)


def _time(written: float) -> bytes:
    return struct.pack(">d", written)


def _changed(info: Mapping[str, Any]) -> float:
    """When an object was written, or used where the storage notes that: seconds since 1970."""
    for name in ("mtime", "LastModified", "last_modified", "updated", "created"):
        found = info.get(name)
        if found is not None:
            return float(found.timestamp() if hasattr(found, "timestamp") else found)
    return 0.0

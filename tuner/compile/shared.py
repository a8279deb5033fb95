"""A cache of compile results that hosts share: a folder, a server's, or what fsspec can reach.

An object's name says what was compiled. An object is believed only if its HMAC is right for its
name, its time and its content, so a torn, flipped, moved or foreign one counts as absent. Hosts
need no lock, because every storage puts an object in one step.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from tuner.compile.server_storage import KEY_VARIABLE as SERVER_KEY_VARIABLE
from tuner.compile.server_storage import ServerStorage
from tuner.compile.storage import TRIM_EVERY, Folder, Remote, Storage
from tuner.errors import BadInput
from tuner.setting import read_value

log = logging.getLogger("tuner.compile")

URL_VARIABLE = "TUNER_SHARED_CACHE"
KEY_VARIABLE = "TUNER_SHARED_CACHE_KEY"
LIMIT_VARIABLE = "TUNER_SHARED_CACHE_GB"
SHORTEST_KEY = 32  # characters
DEFAULT_LIMIT_GB = 20
PAUSE_S = 60.0  # for a storage that failed
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

    def __init__(
        self,
        url: str,
        key: str,
        limit_bytes: int = DEFAULT_LIMIT_GB * 10**9,
        server_key: str | None = None,
    ) -> None:
        """`url` is a folder, a server (https://HOST) or a URL of fsspec (s3://bucket/folder).
        `limit_bytes` is for all objects together. `server_key` is for a server alone. Raises
        BadInput for a key that is too short or missing, and where a package for the URL is.
        """
        if len(key) < SHORTEST_KEY:
            raise BadInput(
                f"{KEY_VARIABLE} has {len(key)} characters and needs {SHORTEST_KEY} or more: "
                "make one with `openssl rand -hex 32`"
            )
        self._key = key.encode()
        self._limit_bytes = limit_bytes
        self._storage = _open_storage(url, server_key)
        self._written = 0
        self._lock = threading.Lock()
        self._again_at = 0.0

    @property
    def identity(self) -> str:
        """Equal for processes that have the same key, which is how hosts see that they share."""
        return self._mac(b"identity").hex()[:12]

    def get(self, key: str) -> bytes | None:
        """What was put under the key; None where that is absent or not what was written."""
        whole = self._try(lambda: self._storage.read(key))
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
        self._try(lambda: self._storage.trim(self._limit_bytes))

    def _write(self, key: str, data: bytes) -> bool:
        now = time.time()
        head = _HEAD.pack(now, self._mac(key.encode(), _time(now), data))
        self._storage.write(key, _MAGIC + head + data)
        return True

    def _use(self, key: str, written: float, data: bytes) -> None:
        """Make an object the most recently used one."""
        if not self._storage.note_use(key) and abs(time.time() - written) > REFRESH_S:
            self._write(key, data)

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
    server_key = read_value(SERVER_KEY_VARIABLE, environ) if _is_server(url) else None
    return SharedCache(url, key, int(limit) * 10**9, server_key)


def _open_storage(url: str, server_key: str | None) -> Storage:
    try:
        if _is_server(url):
            if not server_key:
                text = f"a server needs {SERVER_KEY_VARIABLE}, a key of scope submit"
                raise BadInput(f"{text}: make one with `tuner keys add NAME --scope submit`")
            return ServerStorage(url, server_key)
        path = url.removeprefix("file://")
        return Remote(url) if "://" in path or "::" in path else Folder(Path(path).expanduser())
    except BadInput as error:
        raise BadInput(f"{URL_VARIABLE}: {error}") from None


def _is_server(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def _time(written: float) -> bytes:
    return struct.pack(">d", written)

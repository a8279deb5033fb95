"""Compile results that workers share through the server: bytes under the hashes of their sources.

The server does not look into them. Readers check an HMAC, with a key that the server lacks.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading

from api.settings import ApiSettings
from tuner.compile.server_storage import PATH
from tuner.compile.storage import TRIM_EVERY, Folder
from tuner.errors import BadInput

log = logging.getLogger("tuner.api.compiled")

FOLDER = "shared"  # in the server's cache folder


class CompiledResults:
    """A folder of bounded size. Processes of one host share it, and threads may too."""

    def __init__(self, folder: Folder, limit_bytes: int) -> None:
        self._folder, self._limit_bytes = folder, limit_bytes
        self._written = 0
        self._lock, self._trimming = threading.Lock(), threading.Lock()

    @classmethod
    def of(cls, settings: ApiSettings) -> CompiledResults | None:
        """None where the settings give it no room."""
        if not settings.cache_gb:
            return None
        return cls(Folder(settings.cache_dir / FOLDER), settings.cache_gb * 10**9)

    def get(self, digest: str) -> bytes | None:
        """The bytes, which are then the most recently used ones; None where there are none."""
        found = self._folder.read(digest)
        if found is not None:
            self._folder.note_use(digest)
        return found

    def put(self, digest: str, data: bytes) -> bool:
        """Keep bytes, in place of what is there. Whether it is time to `trim`."""
        self._folder.write(digest, data)
        with self._lock:
            self._written += 1
            return self._written % TRIM_EVERY == 1

    def trim(self) -> None:
        """Delete what was used least recently, if the folder is too large."""
        if not self._trimming.acquire(blocking=False):
            return
        try:
            self._folder.trim(self._limit_bytes)
        except OSError as error:
            log.warning("the compile results are not trimmed: %s", error)
        finally:
            self._trimming.release()


def check_folder(settings: ApiSettings) -> None:
    """Raises BadInput where compile results are to be kept in a folder that cannot be written."""
    if not settings.cache_gb:
        return
    folder = settings.cache_dir / FOLDER
    try:
        with contextlib.suppress(FileExistsError):
            settings.cache_dir.mkdir(mode=0o700, parents=True)
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        text = f"TUNER_API_CACHE_GB: {folder} cannot be written: {error.strerror}"
        raise BadInput(f"{text}; make it writable, or set TUNER_CACHE_DIR to another one") from None


def is_result(path: str) -> bool:
    """Whether a request's path is that of a compile result."""
    return path.startswith(PATH)

"""Cache compile results on disk, under keys of everything that decides them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import platformdirs

from tuner.problems.results import Compiled, Status


def default_cache_dir() -> Path:
    """Return TUNER_CACHE_DIR, or the user's cache folder."""
    named = os.environ.get("TUNER_CACHE_DIR")
    return Path(named) if named else Path(platformdirs.user_cache_dir("tuner"))


# The modules that call Triton and read its output, by their names in this folder.
_COMPILING = (
    *("cubin.py", "elf.py", "hsaco.py", "kernel.py", "ptxas.py", "triton_*.py", "worker.py"),
)


@lru_cache
def compile_code(folder: Path = Path(__file__).parent) -> str:
    """Return a hash of this program's code that decides a result beside Triton's.

    So a stored error of this code is dropped with the code that made it.
    """
    found = hashlib.sha256()
    for pattern in _COMPILING:
        for path in sorted(folder.glob(pattern)):
            found.update(f"{path.name} ".encode() + path.read_bytes())
    return found.hexdigest()


class ResultCache:
    """A small JSON file per result.

    Several processes may use it at once, also on several hosts that have the folder at the same
    path. Callers keep only results that would come out the same again: no timeouts, no dead
    workers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> Compiled | None:
        """Return the result, marked as cached; None if absent or unreadable."""
        try:
            fields = json.loads(self._path(key).read_text())
            return Compiled(**{**fields, "status": Status(fields["status"]), "cached": True})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def put(self, key: str, compiled: Compiled) -> None:
        """Keep a result. A folder that cannot be written is ignored: a cache only saves time."""
        path = self._path(key)
        text = json.dumps({**asdict(compiled), "status": compiled.status.value})
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Written whole: readers never see half a file, and writers never mix theirs.
            with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
                whole = Path(scratch, path.name)
                whole.write_text(text)
                whole.replace(path)

    @contextlib.contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """Say whether the caller is to compile for a key now; False while another process does.

        The lock is a byte of a file, and ends with the process that holds it. A process that was
        stopped keeps it, so nobody should wait for ever. If a file system has no locks, a kernel
        may be compiled twice.
        """
        wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, int(key[:15], 16), 1, 0)
        with contextlib.ExitStack() as stack:
            mine = True
            with contextlib.suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True)
                file = os.open(self._folder / "locks", os.O_RDWR | os.O_CREAT, 0o666)
                stack.callback(os.close, file)
                try:
                    fcntl.fcntl(file, fcntl.F_OFD_SETLK, wanted)
                except (BlockingIOError, PermissionError):
                    mine = False
            yield mine

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"

"""Make the file of a SQLite store private, and watch it while it is open.

A process that closes any descriptor of a file loses all its POSIX locks on the file, and SQLite's
locks are of that kind. Without them, the next process that closes the store deletes the log
(`-wal`) of this process. So nothing but SQLite opens the database, its `-wal` or its `-shm`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
from pathlib import Path

from sqlalchemy import Engine, event

from tuner.errors import StoreReplaced

# The bytes of the database that SQLite locks to read it; who has them alone may merge the log.
_SHARED_FIRST, _SHARED_SIZE = 0x40000002, 510

_REPLACED = (
    "the store's file {} was deleted or replaced: stop all programs that use the store, restore a "
    "backup if something is missing, and start them again"
)

_Identity = tuple[int, int, int]


def refuse_another_file(engine: Engine, path: str) -> None:
    """Raise StoreReplaced once a file of the database at `path` is not the file that was opened.

    Rows that are written to a deleted file are lost when the process ends, and SQLite would make a
    new file for a new connection. Others may have written the database since its log was deleted:
    that log must not be merged into it.
    """
    files = _Files(path)

    @event.listens_for(engine, "checkin")
    def _remember(*_: object) -> None:
        files.remember()

    @event.listens_for(engine, "do_connect")
    @event.listens_for(engine, "checkout")
    def _check(*_: object) -> None:
        files.check()

    @event.listens_for(engine, "close")
    def _before_close(*_: object) -> None:
        with contextlib.suppress(StoreReplaced):
            files.check()


class _Files:
    """The files that a database's connections opened: the database, its log and the log's index."""

    def __init__(self, path: str) -> None:
        self._path, self._real = path, os.path.realpath(path)  # SQLite resolves links as well
        self._names = (path, f"{self._real}-wal", f"{self._real}-shm")
        self._opened: dict[str, _Identity] = {}
        self._gone: list[str] = []

    def remember(self) -> None:
        """Note the files that are there after a connection was used."""
        for name in self._names:
            if name not in self._opened and (found := _identity(name)):
                self._opened[name] = found

    def check(self) -> None:
        """Raise StoreReplaced. A log that was replaced is refused until the process ends."""
        for name, first in list(self._opened.items()):
            if _identity(name) == first or name in self._gone:
                continue
            if name == self._path:
                raise StoreReplaced(_REPLACED.format(name))
            if _is_open(first):
                self._gone.append(name)
                _let_nobody_merge(self._real)
            else:  # SQLite deleted the log with its last connection
                self._opened.pop(name, None)
        if self._gone:
            raise StoreReplaced(_REPLACED.format(self._gone[0]))


def _identity(path: str) -> _Identity | None:
    try:
        found = os.stat(path)  # noqa: PTH116 (for each use of a connection: the quick way)
    except OSError:
        return None
    # While a connection of the pool has a deleted file open, no other gets its number.
    return found.st_dev, found.st_ino, stat.S_IFMT(found.st_mode)


def _is_open(wanted: _Identity) -> bool:
    return any(_identity(str(one)) == wanted for one in Path("/proc/self/fd").iterdir())


def _let_nobody_merge(database: str) -> None:
    """Keep the last connection that closes from merging its log, until this process has ended."""
    lock = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, _SHARED_FIRST, _SHARED_SIZE, 0)
    with contextlib.suppress(OSError):
        # It is never closed. Its lock also holds against this process's own connections.
        fcntl.fcntl(os.open(database, os.O_RDONLY), fcntl.F_OFD_SETLK, lock)


def make_private(engine: Engine, path: str) -> None:
    """Make a new database its owner's alone. SQLite gives the files beside it the same mode.

    A file that is there keeps its mode: its owner may share it.
    """

    @event.listens_for(engine, "do_connect")
    def _on_connect(*_: object) -> None:
        with contextlib.suppress(OSError):  # it is there, or SQLite reports the fault
            os.mknod(os.path.realpath(path), stat.S_IFREG | 0o600)  # which does not open it

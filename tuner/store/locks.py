"""Named locks among all processes that use a database.

They need no rows. PostgreSQL, or the kernel, frees the locks of a killed process at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Connection, Engine, func, select

from tuner.store.connect import file_of
from tuner.store.failures import kind_of


def try_transaction_lock(connection: Connection, name: str) -> bool:
    """Whether this transaction has the lock until it ends. Always True on SQLite.

    SQLite has one writer, which would wait here: it takes `try_file_lock` before.
    """
    if connection.dialect.name != "postgresql":
        return True
    lock = func.pg_try_advisory_xact_lock(_number(name))
    return bool(connection.execute(select(lock)).scalar_one())


@contextlib.contextmanager
def try_file_lock(engine: Engine, name: str) -> Iterator[bool]:
    """Whether the caller has the lock within the block. Always True without a SQLite file.

    The lock is one byte, never written, of a file beside the database: a lock on a byte of the
    database itself would end SQLite's own locks. Raises UnusableStore where the file cannot be
    opened.
    """
    path = file_of(engine.url)
    if path is None:
        yield True
        return
    # The lock belongs to the open file, not to the process: it keeps threads apart as well.
    wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, _number(name), 1, 0)
    try:
        file = os.open(f"{path}-names", os.O_RDWR | os.O_CREAT, Path(path).stat().st_mode & 0o666)
    except OSError as error:
        raise kind_of(error)(f"cannot lock {path}-names: {error.strerror}") from None
    try:
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, wanted)
            mine = True
        except (BlockingIOError, PermissionError):
            mine = False
        yield mine
    finally:
        os.close(file)


def _number(name: str) -> int:
    """A number for each name, of 62 bits: an offset in a file has at most 63."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 2

"""Names that one transaction at a time may have, among all processes that use a database.

They are tried for, never waited for, and need no rows: what a killed process held is free at once,
as PostgreSQL ends its transaction, and the kernel the locks on its files.
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

from tuner.errors import UnusableStore


def taken_in_transaction(connection: Connection, name: str) -> bool:
    """Whether another transaction has the name; else this one has it to its end.

    Of PostgreSQL; on SQLite, whose one writer could but wait here, `hold_beside` is first.
    """
    if connection.dialect.name != "postgresql":
        return False
    lock = func.pg_try_advisory_xact_lock(_number(name))
    return not connection.execute(select(lock)).scalar_one()


@contextlib.contextmanager
def hold_beside(engine: Engine, name: str) -> Iterator[bool]:
    """Whether the caller has the name within the block, as far as a SQLite file is concerned.

    True on PostgreSQL, and for a database in memory, which no other process can see. The lock is
    one byte, never written, of a file beside the database: locking a byte of its own would end
    SQLite's locks on it.
    """
    path = engine.url.database
    has_file = path not in (None, "", ":memory:") and "uri" not in engine.url.query
    if engine.dialect.name != "sqlite" or not has_file:
        yield True
        return
    # An open file's lock, not a process's: so it keeps threads apart as well.
    wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, _number(name), 1, 0)
    file = _open(Path(f"{path}-names"))
    try:
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, wanted)
            mine = True
        except (BlockingIOError, PermissionError):
            mine = False
        yield mine
    finally:
        os.close(file)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UnusableStore(f"cannot lock {path}: {error.strerror}") from None


def _number(name: str) -> int:
    """A number of its own for every name: 62 bits, as a place in a file has at most 63."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 2

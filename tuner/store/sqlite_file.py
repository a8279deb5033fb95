"""The file of a SQLite store: made private, and watched while it is open."""

from __future__ import annotations

import contextlib
import os
import stat

from sqlalchemy import Engine, event

from tuner.errors import StoreReplaced


def refuse_another_file(engine: Engine, path: str) -> None:
    """Raise StoreReplaced once the file at `path` is not the one that was opened first.

    What is written to a deleted file is lost when the process ends, and SQLite would make a new
    file for a new connection.
    """
    first = [found for found in [_identity(path)] if found]

    @event.listens_for(engine, "checkin")
    def _remember(*_: object) -> None:
        if not first and (found := _identity(path)):
            first.append(found)

    @event.listens_for(engine, "do_connect")
    @event.listens_for(engine, "checkout")
    def _check(*_: object) -> None:
        if first and _identity(path) != first[0]:
            raise StoreReplaced(f"the store's file {path} was deleted or replaced: restart this")


def _identity(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 (for each use of a connection: the quick way)
    except OSError:
        return None
    # While a connection of the pool has a deleted file open, no other gets its number.
    return found.st_dev, found.st_ino, stat.S_IFMT(found.st_mode)


def make_private(engine: Engine, file: str) -> None:
    """Make a new database its owner's alone. SQLite gives the files beside it the same mode.

    A file that is there keeps its mode: its owner may share it.
    """

    @event.listens_for(engine, "do_connect")
    def _on_connect(*_: object) -> None:
        with contextlib.suppress(OSError):  # SQLite says what is wrong
            os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))

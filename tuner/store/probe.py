"""Whether a store can be used, asked over a connection that no other work waits for."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sqlalchemy import func, select, text

from tuner.store.connect import connect, file_of
from tuner.store.database import Database
from tuner.store.failures import kind_of
from tuner.store.pool import PoolLimits
from tuner.store.schema import prove_writable

PATIENCE_S = 2
_LIMITS = PoolLimits(PATIENCE_S, PATIENCE_S, PATIENCE_S, connect_s=PATIENCE_S, connections=1)
_TRIED_BYTES = 1 << 18  # a disk with less room is as good as full


class Probe(Database):
    """One connection, which waits for nothing for longer than PATIENCE_S."""

    @classmethod
    def of(cls, url: str) -> Probe:
        """For the store at `url`, which is not migrated."""
        return cls(connect(url, _LIMITS))

    def check_writable(self) -> None:
        """Raises UnusableStore, of the class that fits, where nothing could be stored now.

        It stores nothing: a change is rolled back, and what the disk is tried with is deleted.
        """
        with self._write() as connection:
            if connection.dialect.name == "postgresql":
                # A function's rows that exceed work_mem go into a temporary file of the server.
                connection.execute(text("SET LOCAL work_mem = '64kB'"))
                rows = func.generate_series(1, _TRIED_BYTES // 16).table_valued("number")
                connection.execute(select(func.count()).select_from(rows))
            prove_writable(connection)
        if file := file_of(self._engine.url):
            _try_disk(Path(file).parent)


def _try_disk(folder: Path) -> None:
    """Raises UnusableStore where a file in the folder cannot be made or takes no bytes."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(_TRIED_BYTES))
    except OSError as error:
        raise kind_of(error)(f"cannot write into {folder}: {error.strerror}") from None

"""Open a database: its schema, its transactions, named locks, and statements of its dialect."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, Engine, Table, column, func, inspect, select, table, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError

from tuner.errors import BadInput, NewerSchema, UnusableStore, WrongSchema
from tuner.store.connect import (
    PATIENT,
    URL_VARIABLE,
    PoolLimits,
    connect,
    file_of,
    kind_of,
    reader,
    translated,
    use_wal,
    write_lock_of,
    writer,
)
from tuner.store.tables import VERSION_TABLE

if TYPE_CHECKING:
    from alembic.config import Config


HEAD = "0018"
_OLDER = ("0017",)  # which are upgraded
_VERSION = table(VERSION_TABLE, column("version_num"))

# `migrations` is beside the package, in a checkout as in site-packages. It is found by its path:
# by name, another package on sys.path could be found.
_MIGRATIONS = Path(__file__).parents[2] / "migrations"
_LOCK = 0x74756E6572  # "tuner", as PostgreSQL's advisory locks are numbers


def bring_to_head(engine: Engine) -> None:
    """Migrate an empty or older database in a transaction, and check that it can be written.

    Raises NewerSchema for a newer version's schema, and leaves the database as it is.
    """
    with engine.connect() as connection, _without_foreign_keys(connection), connection.begin():
        if _heads(connection) == (HEAD,):
            check_writable(connection)
            return
        # On SQLite, the transaction has the write lock already.
        if connection.dialect.name == "postgresql":
            # A migration must not be cut off by the session's limits.
            for limit in ("statement_timeout", "lock_timeout"):
                connection.execute(text(f"SET LOCAL {limit} = 0"))
            driver: Any = connection.connection.driver_connection
            driver.silence_s = None  # until the pool has it back
            connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
        _upgrade(connection)


@contextlib.contextmanager
def _without_foreign_keys(connection: Connection) -> Iterator[None]:
    """Let SQLite alter a table, which it does by copying and dropping it: the rows of other tables
    that refer to the table would go with it, or forbid it. No transaction may have begun.
    """
    if connection.dialect.name != "sqlite":
        yield
        return
    driver: Any = connection.connection.driver_connection
    driver.execute("PRAGMA foreign_keys = OFF")
    try:
        yield
    finally:
        driver.execute("PRAGMA foreign_keys = ON")


def check_head(connection: Connection) -> None:
    """Raise NewerSchema if a newer version has migrated the store, WrongSchema for
    other schemas.
    """
    found = connection.execute(select(_VERSION.c.version_num)).scalars().all()
    if found != [HEAD]:
        raise _wrong(found)


def alembic_config() -> Config:
    # A store at this version's schema needs none of it, and it is a quarter of a worker's imports.
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config


def _heads(connection: Connection) -> tuple[str, ...]:
    if not inspect(connection).has_table(VERSION_TABLE):
        return ()
    return tuple(connection.execute(select(_VERSION.c.version_num)).scalars())


def _upgrade(connection: Connection) -> None:
    from alembic import command  # noqa: PLC0415

    config, found = alembic_config(), _heads(connection)
    if found and found not in [(one,) for one in (*_OLDER, HEAD)]:
        raise _wrong(found)
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
        if connection.dialect.name == "sqlite":
            for row in connection.exec_driver_sql("PRAGMA foreign_key_check"):
                raise UnusableStore(
                    f"the store is not upgraded: a row of {row[0]} refers to a row of {row[2]} "
                    "that is not there: restore a backup"
                )
    except DBAPIError as error:
        # PostgreSQL's codes and SQLite's words for a table or a column that is there already.
        code, reason = getattr(error.orig, "sqlstate", None), str(error.orig).partition("\n")[0]
        if code in ("42P07", "42701") or "already exists" in reason or "duplicate column" in reason:
            raise _set_back(found, reason) from error
        raise


def _wrong(found: Sequence[str]) -> WrongSchema:
    if not found:
        return WrongSchema("the store's schema is gone: restore a backup, or restart this program")
    version = max(found)
    if version > HEAD:
        return NewerSchema(
            f"the store was upgraded to schema {version} and this program knows {HEAD}: "
            "upgrade and restart it"
        )
    return WrongSchema(
        f"the store has schema {version} of an early development version, and this program needs "
        f"{HEAD}: export with that version the results worth keeping, and name a new store"
    )


def _set_back(found: Sequence[str], reason: str) -> UnusableStore:
    said = f"says that its schema is {found[0]}" if found else "does not say which schema it has"
    return UnusableStore(
        f"the store {said}, but it holds more ({reason}): restore a backup, or, if another "
        "program's tables are in it, use a database of its own"
    )


def check_writable(connection: Connection) -> None:
    """Raise a database error if the store takes no writes. Rolls the transaction back."""
    # SQLite opens a read-only file without an error, and even BEGIN IMMEDIATE succeeds on it.
    connection.execute(update(_VERSION).values(version_num=_VERSION.c.version_num))
    connection.rollback()


# Named locks among all processes that use a database need no rows. PostgreSQL, or the kernel, frees
# the locks of a killed process at once.


def try_transaction_lock(connection: Connection, name: str) -> bool:
    """Say whether this transaction has the lock until it ends. Always True on SQLite.

    SQLite has a single writer, which would wait here: it takes `try_file_lock` before.
    """
    if connection.dialect.name != "postgresql":
        return True
    lock = func.pg_try_advisory_xact_lock(_number(name))
    return bool(connection.execute(select(lock)).scalar_one())


def transaction_lock(connection: Connection, name: str) -> None:
    """Wait for the lock, which this transaction then has until it ends. SQLite needs none."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_number(name))))


@contextlib.contextmanager
def try_file_lock(engine: Engine, name: str) -> Iterator[bool]:
    """Say whether the caller has the lock within the block. Always True without a SQLite file.

    The lock is a byte, never written, of a file beside the database: to lock a byte of the database
    itself, this would have to open it (see sqlite_file). Raises UnusableStore if the file cannot be
    opened.
    """
    if file_of(engine.url) is None:
        yield True
        return
    path = _names_file(engine)
    # The lock belongs to the open file, not to the process: it keeps threads apart as well.
    wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, _number(name), 1, 0)
    try:
        mode = Path(str(engine.url.database)).stat().st_mode & 0o666
        file = os.open(path, os.O_RDWR | os.O_CREAT, mode)
    except OSError as error:
        raise kind_of(error)(f"cannot lock {path}: {error.strerror}") from None
    try:
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, wanted)
            mine = True
        except (BlockingIOError, PermissionError):
            mine = False
        yield mine
    finally:
        os.close(file)


@contextlib.contextmanager
def only_server(engine: Engine, address: str) -> Iterator[None]:
    """Keep a second server off a SQLite file within the block.

    Two servers would measure on the same GPU at the same time, and count a client's requests apart.
    Raises BadInput, which names the process that serves the file and its address.
    """
    with try_file_lock(engine, "server") as mine:
        if not mine:
            who = _names_file(engine).read_text() or "another process"
            raise BadInput(
                f"the store {engine.url.database} is served by {who}: use that server, or stop it, "
                f"or name another store in {URL_VARIABLE}"
            )
        if file_of(engine.url):
            with contextlib.suppress(OSError):  # on a full disk, stored rows can still be read
                _names_file(engine).write_text(f"process {os.getpid()} on {address}")
        yield


def _names_file(engine: Engine) -> Path:
    """Return the file with the locks of a SQLite database, the same for every path to
    the database.
    """
    return Path(f"{os.path.realpath(str(engine.url.database))}-names")


def _number(name: str) -> int:
    """Return a number for each name, of 62 bits: an offset in a file has at most 63."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 2


D = TypeVar("D", bound="Database")
Q = TypeVar("Q", bound="Queries")
Clock = Callable[[], datetime]


class Database:
    """An open database. Threads may share it; forked processes may not, each opens its own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._reader = reader(engine)
        self._writer = writer(engine)

    @classmethod
    def open(cls: type[D], url: str, limits: PoolLimits = PATIENT) -> D:
        """Open the store at `url` (see `database_url`), made or migrated as needed.

        A migration has no time limit, unlike other statements. Raises UnusableStore, with nothing
        written, for a URL that names no SQLite or PostgreSQL database, or a database that cannot be
        reached or written, or that has a newer version's schema.
        """
        engine = connect(url, limits)
        with translated(engine.url):
            bring_to_head(writer(engine))
            use_wal(engine)
        return cls(engine)

    def close(self) -> None:
        self.engine.dispose()

    def __enter__(self: D) -> D:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def check_schema(self) -> None:
        """Raise NewerSchema once a newer version has migrated the store, WrongSchema for an older.

        A program that goes on would write rows that the newer version does not expect.
        """
        with self.read() as connection:
            check_head(connection)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a connection that sees committed rows: a single state on SQLite, else a state per
        statement.
        """
        with translated(self.engine.url), self._reader.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        with (
            write_lock_of(self._writer),
            translated(self.engine.url),
            self._writer.begin() as connection,
        ):
            yield connection

    @contextmanager
    def write_locked(self, name: str, refusal: Exception) -> Iterator[Connection]:
        """Open `write` with a named lock. Raises `refusal` at once if another
        transaction has it.
        """
        with try_file_lock(self.engine, name) as mine:
            if not mine:
                raise refusal
            with self.write() as connection:
                if not try_transaction_lock(connection, name):
                    raise refusal
                yield connection


class Queries:
    """Queries of a topic. Each method is a transaction, and raises UnusableStore."""

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        self.database = database
        self._clock = clock
        self._read, self._write = database.read, database.write

    @classmethod
    @contextmanager
    def open(cls: type[Q], url: str, limits: PoolLimits = PATIENT) -> Iterator[Q]:
        """Open these queries on the store at `url`, for the block alone."""
        with Database.open(url, limits) as database:
            yield cls(database)

    def _now(self, connection: Connection | None = None) -> datetime:
        """Return the time of `clock`; without a clock, of the database's host, or of this host."""
        return time_of(connection, self._clock)


def insert_into(connection: Connection, target: Table) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT that takes ON CONFLICT, and whose result counts the rows that it added."""
    postgres = connection.dialect.name == "postgresql"
    insert = postgresql.insert(target) if postgres else sqlite.insert(target)
    return insert.execution_options(preserve_rowcount=True)


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


def time_of(connection: Connection | None, clock: Clock | None) -> datetime:
    """Return the time of `clock`; without a clock, of the database's host, for all workers alike.

    With its own time, a host whose clock is a minute ahead would find every lease expired.
    """
    if clock is not None:
        return clock()
    if connection is not None and connection.dialect.name == "postgresql":
        now: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
        return now.astimezone(timezone.utc)
    return utc_now()


PATIENCE_S = 2
_LIMITS = PoolLimits(PATIENCE_S, PATIENCE_S, PATIENCE_S, connect_s=PATIENCE_S, connections=1)
_TRIED_BYTES = 1 << 18  # a disk with less room is as good as full


class Probe(Database):
    """A database with a single connection, which waits for nothing for longer than PATIENCE_S."""

    @classmethod
    def of(cls, url: str) -> Probe:
        """Return a probe of the store at `url`, which is not migrated."""
        return cls(connect(url, _LIMITS))

    def check_writable(self) -> None:
        """Raise UnusableStore, of the class that fits, if nothing could be stored now.

        Nothing stays: a change is rolled back, and the file that tries the disk is deleted.
        """
        with self.write() as connection:
            if connection.dialect.name == "postgresql":
                # A function's rows that exceed work_mem go into a temporary file of the server.
                connection.execute(text("SET LOCAL work_mem = '64kB'"))
                rows = func.generate_series(1, _TRIED_BYTES // 16).table_valued("number")
                connection.execute(select(func.count()).select_from(rows))
            check_writable(connection)
        if file := file_of(self.engine.url):
            _try_disk(Path(file).parent)


def _try_disk(folder: Path) -> None:
    """Raise UnusableStore if a file in the folder cannot be made or takes no bytes."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(_TRIED_BYTES))
    except OSError as error:
        raise kind_of(error)(f"cannot write into {folder}: {error.strerror}") from None

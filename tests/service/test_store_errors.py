"""A database's errors: which of them pass by themselves, and which need an operator."""

import sqlite3
from types import SimpleNamespace

import psycopg
import pytest
from cases import new_request
from databases import both_databases
from sqlalchemy import make_url, text
from sqlalchemy.exc import OperationalError
from store_writer import PROBLEM

from tuner.errors import StoreFull, StoreReadOnly, StoreUnreachable, UnusableStore
from tuner.store.connect import translated
from tuner.store.database import Database
from workers import run_job
from workers.settings import Settings


def run(store: Database, *statements: str) -> None:
    with store.write() as connection:
        for statement in statements:
            connection.execute(text(statement))


def raising(code: str) -> str:
    """A statement that PostgreSQL itself answers with that code."""
    return f"DO $$ BEGIN RAISE EXCEPTION 'this' USING ERRCODE = '{code}'; END $$"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("53100", StoreFull),
        ("25006", StoreReadOnly),
        ("57P01", StoreUnreachable),  # the server stops
        ("57014", StoreUnreachable),  # a statement took too long
        ("55P03", StoreUnreachable),  # a lock was not free in time
        ("53300", StoreUnreachable),  # too many connections
        ("40P01", StoreUnreachable),  # a deadlock
        ("25P03", StoreUnreachable),
        ("42P01", UnusableStore),  # no such table
        ("23505", UnusableStore),  # not unique
    ],
)
def test_postgresql_says_by_its_codes_what_is_wrong(postgres_url, code, kind):
    with Database.open(postgres_url) as store, pytest.raises(UnusableStore) as caught:
        run(store, raising(code))
    assert type(caught.value) is kind


def test_a_server_that_does_not_let_us_in_is_unreachable(postgres_url):
    name = make_url(postgres_url).set(drivername="postgresql")
    with psycopg.connect(name.render_as_string(hide_password=False), autocommit=True) as server:
        server.execute(f"ALTER DATABASE {name.database} CONNECTION LIMIT 0")
        server.execute("CREATE ROLE tuner_nobody LOGIN")
    try:
        with pytest.raises(StoreUnreachable):
            Database.open(name.set(username="tuner_nobody").render_as_string(hide_password=False))
    finally:
        with psycopg.connect(name.render_as_string(hide_password=False)) as server:
            server.execute("DROP ROLE tuner_nobody")


def test_a_full_disk_under_sqlite_is_said_to_be_full(sqlite_url):
    with Database.open(sqlite_url) as store, pytest.raises(StoreFull, match="disk is full"):
        run(
            store,
            "PRAGMA max_page_count = 1",
            "CREATE TABLE more (text TEXT)",
            "INSERT INTO more VALUES (hex(randomblob(100000)))",
        )


def test_sqlite_s_lock_that_is_not_free_in_time_is_a_store_that_does_not_answer(sqlite_url):
    with Database.open(sqlite_url) as first, Database.open(sqlite_url) as second:
        with second.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA busy_timeout = 0")
        with first.write(), pytest.raises(StoreUnreachable, match="is locked"):
            run(second, "SELECT 1")


@both_databases
def test_a_store_that_takes_no_writes_is_said_to_be_read_only(store_url):
    with Database.open(store_url) as store:
        postgres = store.engine.dialect.name == "postgresql"
        off = "SET TRANSACTION READ ONLY" if postgres else "PRAGMA query_only = on"
        with pytest.raises(StoreReadOnly):
            run(store, off, "DELETE FROM watches")


def test_a_disk_without_room_is_called_full_whatever_sqlite_calls_it(tmp_path, monkeypatch):
    url = make_url(f"sqlite:///{tmp_path / 't.db'}")
    failed = OperationalError("INSERT", {}, sqlite3.OperationalError("disk I/O error"))
    with pytest.raises(UnusableStore) as other, translated(url):
        raise failed
    assert type(other.value) is UnusableStore
    usage = SimpleNamespace(free=0)
    monkeypatch.setattr("tuner.store.connect.shutil.disk_usage", lambda _: usage)
    with pytest.raises(StoreFull, match="its disk is full: make room there"), translated(url):
        raise failed


def test_a_store_that_may_not_be_written_says_what_to_do(tmp_path):
    url = make_url(f"sqlite:///{tmp_path / 't.db'}")
    said = sqlite3.OperationalError("attempt to write a readonly database")
    with pytest.raises(StoreReadOnly, match="ask its owner"), translated(url):
        raise OperationalError("INSERT", {}, said)


@pytest.mark.parametrize("text_of_url", ["sqlite:////srv/t.db", "postgresql://a:b@store/t"])
def test_what_a_job_says_to_clients_does_not_name_the_store(text_of_url):
    settings, failed = Settings(text_of_url), sqlite3.OperationalError("disk I/O error")
    url = make_url(text_of_url)
    with pytest.raises(UnusableStore) as error, translated(url):
        raise OperationalError("INSERT", {}, failed)
    said = run_job._without_places(str(error.value), new_request(PROBLEM, "L40S"), settings)
    assert said == "cannot use the store: disk I/O error"

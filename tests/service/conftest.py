"""Stores on both databases, what is in them, and a clock that goes on when it is told to.

A store's fixtures give a copy of one that is made once in each process. `empty_store_url` is for
tests of what makes it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from clocks import Clock
from servers import postgres_database, postgres_server, redis_server
from sqlalchemy import URL, make_url

from tuner.store import JobStore, Leases, Store

WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


@pytest.fixture(scope="session")
def postgres(run_folder: Path) -> Iterator[URL]:
    """A PostgreSQL server that databases may be made on: one for all of xdist's workers."""
    with postgres_server(run_folder) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_template(postgres: URL) -> Iterator[str]:
    """The name of a PostgreSQL database with an empty store."""
    with postgres_database(postgres) as url:
        Store.open(url).close()
        yield str(make_url(url).database)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with an empty store."""
    file = tmp_path_factory.mktemp("template") / "tuner.db"
    Store.open(f"sqlite:///{file}").close()
    return file


@pytest.fixture
def postgres_url(postgres: URL, postgres_template: str) -> Iterator[str]:
    """A PostgreSQL database with an empty store, for one test."""
    with postgres_database(postgres, postgres_template) as url:
        yield url


@pytest.fixture
def empty_postgres_url(postgres: URL) -> Iterator[str]:
    """A PostgreSQL database with nothing in it, for one test."""
    with postgres_database(postgres) as url:
        yield url


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A SQLite file with an empty store, for one test."""
    file = tmp_path / "tuner.db"
    shutil.copyfile(sqlite_template, file)
    return f"sqlite:///{file}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def database(request: pytest.FixtureRequest) -> str:
    """The kind of database of the test's store; see `both_databases`."""
    return str(request.param)


@pytest.fixture
def store_url(request: pytest.FixtureRequest, database: str) -> str:
    """An empty store on each database."""
    name = "sqlite_url" if database == "sqlite" else "postgres_url"
    return str(request.getfixturevalue(name))


@pytest.fixture
def empty_store_url(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> str:
    """A place for a store on each database, with nothing in it."""
    if database == "sqlite":
        return f"sqlite:///{tmp_path / 'made' / 'tuner.db'}"
    return str(request.getfixturevalue("empty_postgres_url"))


@pytest.fixture(scope="session")
def redis_url(run_folder: Path) -> Iterator[str]:
    """A Redis that messages may be sent over: a database for each of xdist's workers."""
    with redis_server(run_folder, WORKER) as url:
        yield url


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with Store.open(store_url) as opened:
        yield opened


@pytest.fixture
def jobs(store: Store, clock: Clock) -> JobStore:
    return JobStore(store, clock)


@pytest.fixture
def leases(store: Store, clock: Clock) -> Leases:
    return Leases(store, clock)

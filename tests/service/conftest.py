"""Stores on both databases, what is in them, and a clock that goes on when it is told to.

A store's fixtures give a copy of one that is made once in each process. `empty_store_url` is for
tests of what makes it.
"""

import os
import shutil
from dataclasses import replace

import pytest
from api_server import LARGEST, Server, rows_of, serving
from clocks import Clock
from servers import postgres_database, postgres_server, redis_server
from sqlalchemy import make_url
from visitor import Visitor

from api.settings import ApiSettings
from tuner.store.database import Database
from tuner.store.jobs import JobStore
from tuner.store.leases import Leases
from workers.settings import Settings

WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


@pytest.fixture(scope="session")
def postgres(run_folder):
    """A PostgreSQL server that databases may be made on: one for all of xdist's workers."""
    with postgres_server(run_folder) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_template(postgres):
    """The name of a PostgreSQL database with an empty store."""
    with postgres_database(postgres) as url:
        Database.open(url).close()
        yield str(make_url(url).database)


@pytest.fixture
def postgres_url(postgres, postgres_template):
    """A PostgreSQL database with an empty store, for one test."""
    with postgres_database(postgres, postgres_template) as url:
        yield url


@pytest.fixture
def empty_postgres_url(postgres):
    """A PostgreSQL database with nothing in it, for one test."""
    with postgres_database(postgres) as url:
        yield url


@pytest.fixture
def sqlite_url(sqlite_template, tmp_path):
    """A SQLite file with an empty store, for one test."""
    file = tmp_path / "tuner.db"
    shutil.copyfile(sqlite_template, file)
    return f"sqlite:///{file}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def database(request):
    """The kind of database of the test's store; see `both_databases`."""
    return str(request.param)


@pytest.fixture
def store_url(request, database):
    """An empty store on each database."""
    name = "sqlite_url" if database == "sqlite" else "postgres_url"
    return str(request.getfixturevalue(name))


@pytest.fixture
def empty_store_url(request, database, tmp_path):
    """A place for a store on each database, with nothing in it."""
    if database == "sqlite":
        return f"sqlite:///{tmp_path / 'made' / 'tuner.db'}"
    return str(request.getfixturevalue("empty_postgres_url"))


@pytest.fixture(scope="session")
def redis_url(run_folder):
    """A Redis that messages may be sent over: a database for each of xdist's workers."""
    with redis_server(run_folder, WORKER) as url:
        yield url


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(store_url):
    with Database.open(store_url) as opened:
        yield opened


@pytest.fixture
def server(store_url):
    """The API on that store, open to this machine without a key."""
    with serving(ApiSettings(Settings(store_url), no_auth=True)) as running:
        yield running


@pytest.fixture(scope="session")
def untouched(tmp_path_factory):
    """For requests that must write nothing; the files of a process share it."""
    service = Settings(f"sqlite:///{tmp_path_factory.mktemp('untouched') / 'tuner.db'}")
    settings = ApiSettings(service, LARGEST, rate=(), submit_rate=(), no_auth=True)
    with serving(settings) as running:
        yield running
        assert rows_of(service.database_url) == 0


@pytest.fixture
def jobs(store, clock):
    return JobStore(store, clock)


@pytest.fixture
def leases(store, clock):
    return Leases(store, clock)


@pytest.fixture
def visitor(server: Server) -> Visitor:
    """Somebody without scripts who is logged in with the server's key."""
    someone = Visitor(replace(server, key=None))
    someone.log_in(server.key or "")
    return someone

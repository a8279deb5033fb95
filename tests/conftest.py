"""Fixtures that more than one room's tests use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import postgres_database, postgres_server, redis_server
from sqlalchemy import URL


@pytest.fixture(scope="session")
def postgres() -> Iterator[URL]:
    """A PostgreSQL server that databases may be made on."""
    with postgres_server() as url:
        yield url


@pytest.fixture
def postgres_url(postgres: URL) -> Iterator[str]:
    """An empty PostgreSQL database for one test."""
    with postgres_database(postgres) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a store on each database, with nothing in it."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'made' / 'tuner.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis that messages may be sent over."""
    with redis_server() as url:
        yield url

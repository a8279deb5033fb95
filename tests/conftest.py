"""Fixtures that tests of several folders use, and how Hypothesis draws."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from servers import postgres_database, postgres_server, redis_server
from sqlalchemy import URL

settings.register_profile(
    "tuner",
    deadline=None,  # a busy machine is no failure
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    # Continuous integration judges a change, not the luck of a draw; by hand, each run draws anew.
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("tuner")


# Tests read whole rows of tables; `tests/cli/test_widths.py` has 80 columns.
os.environ.setdefault("COLUMNS", "200")
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """One file runs in this process: that starts at once, and a debugger or -s works. So do
    tests on a GPU, which share it.
    """
    files = {argument.partition("::")[0] for argument in config.args}
    one_file = len(files) == 1 and files.pop().endswith(".py")
    return 0 if one_file or config.option.markexpr == "gpu" else None


@pytest.fixture(scope="session")
def postgres() -> Iterator[URL]:
    """A PostgreSQL server that databases may be made on: one for each of xdist's workers."""
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
    """A Redis that messages may be sent over: a database for each of xdist's workers."""
    with redis_server(WORKER) as url:
        yield url

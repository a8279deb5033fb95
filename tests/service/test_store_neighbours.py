"""A SQLite store keeps its locks and all that was accepted, whatever other programs come and go."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from api_server import Server
from api_server import serving as api_serving
from cases import RECORDINGS, new_request, submit
from store_writer import PROBLEM
from test_serve import JOB, TUNER, env, key_file, serving, tuner  # noqa: F401 (env is a fixture)
from worker_processes import REPLAY, embedded, wait_for

from api.settings import ApiSettings
from tuner.errors import StoreReplaced
from tuner.store.jobs import JobStore
from workers.settings import Settings

REQUEST = new_request(PROBLEM, "L40S", measure="predict")
# Each opens the store as its owner does beside a server.
NEIGHBOURS = (
    ("admin", "keys", "create", "ci"),
    ("admin", "keys", "list"),
    ("jobs",),
    ("admin", "workers"),
    ("nightly", "coverage"),
    ("nightly", "watches"),
    ("nightly", "run", "--dry-run"),
    ("export", "--device", "H200"),
    ("admin", "migrate"),
)


def locks(file: Path, pid: int) -> list[str]:
    """A process's POSIX locks on a file, as the kernel lists them."""
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    of_file = [one for one in lines if one[5].endswith(f":{file.stat().st_ino}")]
    return [" ".join(one) for one in of_file if one[1] == "POSIX" and one[4] == str(pid)]


def files_of(file: Path) -> tuple[Path, Path, Path]:
    return file, file.with_name(f"{file.name}-wal"), file.with_name(f"{file.name}-shm")


class Opened:
    """Who opened which file with Python's own means, in any thread of this process."""

    def __init__(self) -> None:
        self.watched: set[str] = set()
        self.found: list[str] = []

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and self.watched and str(arguments[0]) in self.watched:
            self.found.append("".join(traceback.format_stack(limit=6)))


OPENED = Opened()
sys.addaudithook(OPENED)  # which cannot be removed


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tuner.db"


@pytest.fixture
def opened(file: Path) -> Iterator[list[str]]:
    """Stacks of what opened a file of the store, other than SQLite."""
    OPENED.watched, OPENED.found = set(map(str, files_of(file))), []
    yield OPENED.found
    OPENED.watched = set()


def at_once(*calls: Callable[[], object]) -> None:
    """Call them in threads that begin together."""
    barrier = threading.Barrier(len(calls))

    def call(one: Callable[[], object]) -> None:
        barrier.wait(30)
        one()

    with ThreadPoolExecutor(len(calls)) as pool:
        for ended in [pool.submit(call, one) for one in calls]:
            ended.result()


def test_two_connections_of_a_process_leave_it_its_lock(file):
    with JobStore.open(f"sqlite:///{file}") as jobs:
        with jobs.database.read(), jobs.database.read():
            jobs.counts()  # a third connection
        assert locks(file, os.getpid())
        with JobStore.open(f"sqlite:///{file}") as other:
            other.counts()
        assert locks(file, os.getpid())


def test_stores_that_are_made_at_once_in_one_process_leave_it_its_lock(file, opened):
    with ExitStack() as stack:

        def use() -> None:
            stack.enter_context(JobStore.open(f"sqlite:///{file}")).counts()

        at_once(*[use] * 4)
        assert locks(file, os.getpid())
    assert not opened, opened[0]


def test_nothing_of_a_service_opens_the_store_but_sqlite(file, opened, tmp_path, monkeypatch):
    """A second descriptor of one of its files ends SQLite's locks when it is closed."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    settings = Settings(f"sqlite:///{file}", recordings=RECORDINGS)
    environ = {**os.environ, "TUNER_DATABASE_URL": settings.database_url}
    environ["TUNER_RECORDINGS"] = str(RECORDINGS)
    monkeypatch.setattr(os, "environ", environ)
    with embedded(settings) as worker, api_serving(ApiSettings(settings, no_auth=True)) as server:
        job = server.call("POST", "/v1/jobs", REPLAY).json
        worker.announce(job)
        wait_for(lambda: server.call("GET", f"/v1/jobs/{job['id']}").json["state"] == "done")
        assert ask_for_all(server, job["id"]) > 20
        for words in NEIGHBOURS:
            tuner(environ, *words, code=None)
        assert locks(file, os.getpid())
    assert not opened, opened[0]


def ask_for_all(server: Server, job_id: str) -> int:
    """Read all that the API shows; the number of answers. None of them is the server's fault."""
    paths = server.call("GET", "/openapi.json").json["paths"]
    names = {"job_id": job_id, "device": "H200"}
    asked = [path.format_map(names) for path in paths if "get" in paths[path] and readable(path)]
    asked += ["/", "/jobs", f"/jobs/{job_id}", "/results", "/coverage", "/nights", "/exports"]
    for path in asked:
        assert server.call("GET", path).status < 500, path
    return len(asked)


def readable(path: str) -> bool:
    return not path.endswith("/events") and all(
        one in ("job_id", "device") for one in parameters(path)
    )


def parameters(path: str) -> list[str]:
    return [part.partition("}")[0] for part in path.split("{")[1:]]


def test_a_killed_server_keeps_all_jobs_and_keys(env, file):  # noqa: F811
    """The commands that came and went beside it took themselves for the last ones."""
    command = ("--no-worker",)
    with serving(env, *command) as (url, process):
        remote = {**env, "TUNER_SERVER": url}
        port = int(url.rpartition(":")[2])
        server = Server(port, None, key_file(env).read_text().strip())
        at_once(*[lambda: server.call("GET", "/v1/jobs")] * 8)
        keys = [run_beside(env, "admin", "keys", "create", "before")]
        posted = [server.submit(seed=seed)["id"] for seed in range(20)]
        keys.append(run_beside(env, "admin", "keys", "create", "after"))
        assert locks(file, process.pid)
        assert held_deleted(process.pid) == []
        for key in keys:
            assert server.call("GET", "/v1/jobs", key=key).status == 200
        assert json.loads(tuner(remote, "jobs", "--json").stdout)
        process.kill()
        process.wait(60)
    with JobStore.open(f"sqlite:///{file}") as jobs:
        assert {job.id for job in jobs.list()} == set(posted)
    stored = {
        one["name"] for one in json.loads(tuner(env, "admin", "keys", "list", "--json").stdout)
    }
    assert stored == {"local", "before", "after"}
    assert checked(file) == "ok"


def run_beside(env: dict[str, str], *words: str) -> str:  # noqa: F811
    """What a command says, in a process of its own."""
    done = subprocess.run([TUNER, *words], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def held_deleted(pid: int) -> list[str]:
    links = [str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()]
    return [link for link in links if link.endswith("(deleted)") and "tuner.db" in link]


def checked(file: Path) -> str:
    with closing(sqlite3.connect(file)) as connection:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])


class TestReplaced:
    """A log that this process has open and others do not see is never written again."""

    @pytest.mark.parametrize("number", [1, 2], ids=["-wal", "-shm"])
    def test_a_deleted_log_is_refused(self, file, number):
        with JobStore.open(f"sqlite:///{file}") as jobs:
            submit(jobs, REQUEST)
            gone = files_of(file)[number]
            gone.unlink()
            for call in (jobs.counts, lambda: submit(jobs, REQUEST)):
                with pytest.raises(StoreReplaced, match=f"{gone} was deleted or replaced: stop"):
                    call()

    def test_a_restored_backup_is_not_overwritten_by_the_old_log(self, file, tmp_path):
        backup = tmp_path / "backup.db"
        with JobStore.open(f"sqlite:///{file}") as jobs:
            submit(jobs, REQUEST)
            with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(backup)) as copy:
                source.backup(copy)
            jobs.cancel(jobs.list()[0].id)
            for one in files_of(file)[1:]:
                one.unlink()
            shutil.copyfile(backup, file)  # as an operator does: into the same file
        assert file.read_bytes() == backup.read_bytes()
        assert checked(file) == "ok"

    def test_a_log_that_its_last_user_deleted_is_no_reason(self, file):
        with JobStore.open(f"sqlite:///{file}") as jobs:
            submit(jobs, REQUEST)
            jobs.database.engine.dispose()
            assert not files_of(file)[1].exists()
            assert len(jobs.list()) == 1
            jobs.database.engine.dispose()
            JobStore.open(f"sqlite:///{file}").__enter__().database.close()
            assert len(jobs.list()) == 1


class TestOneServer:
    def test_a_second_server_of_a_file_is_refused_by_name(self, env, file):  # noqa: F811
        with serving(env, "--no-worker") as (url, first):
            command = [TUNER, "serve", "--port", "0"]
            run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
            assert (run.returncode, run.stdout) == (2, "")
            assert run.stderr == (
                f"tuner: error: the store {file} is served by process {first.pid} on {url}: use "
                "that server, or stop it, or name another store in TUNER_DATABASE_URL\n"
            )
            assert locks(file, first.pid)
            tuner({**env, "TUNER_SERVER": url}, "jobs", "submit", *JOB)
            first.kill()
            first.wait(60)
        with serving(env, "--no-worker") as (_, again):  # a killed one leaves nothing behind
            again.send_signal(signal.SIGTERM)
            assert again.wait(60) == 0

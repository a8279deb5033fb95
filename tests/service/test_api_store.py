"""What the API says, and does not do, while its store is away, full, locked, newer or gone."""

import sqlite3
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from api_server import JOB, Server, eventually, serving
from databases import both_databases, superuser
from servers import Postgres
from sqlalchemy import event, make_url, text

from api.limits import Question
from api.settings import ApiSettings
from api.state import Readiness
from tuner.errors import StoreUnreachable
from tuner.store.connect import connect, writer
from tuner.store.database import HEAD
from tuner.store.tables import VERSION_TABLE
from workers.settings import Settings


@pytest.fixture
def settings(store_url):
    return ApiSettings(Settings(store_url), lock_s=1, no_auth=True)


@pytest.fixture
def server(settings, monkeypatch):
    monkeypatch.setattr("api.state.FRESH_S", 0)
    monkeypatch.setattr("api.state.LOOK_S", 0.02)
    monkeypatch.setattr("api.state.PATIENCE_S", 30)  # the machine may be busy
    with serving(settings) as running:
        yield running


@pytest.fixture
def small_disk():
    """Makes a file system with so many MiB."""
    # Not in pytest's folder, which is its user's alone: PostgreSQL runs as another one.
    with tempfile.TemporaryDirectory(prefix="tuner-disk-") as name, ExitStack() as made:
        folder = Path(name)
        folder.chmod(0o755)

        def make(mib: int) -> Path:
            command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=755", "tuner", name]
            if subprocess.run(command, capture_output=True, check=False).returncode:
                pytest.skip("this account may not mount a file system")
            made.callback(subprocess.run, ["umount", "--lazy", name], check=True)
            return folder

        yield make


def fill(folder: Path) -> Path:
    """A file that takes all that is left."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))
    return filler


def execute(url: str, statement: str) -> None:
    engine = connect(url)
    with writer(engine).begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


class TestSchema:
    def test_nothing_is_done_on_another_schema(self, server, store_url):
        said = f"the store was upgraded to schema 9999 and this program knows {HEAD}: upgrade"
        job_id = server.submit()["id"]
        execute(store_url, f"UPDATE {VERSION_TABLE} SET version_num = '9999'")  # noqa: S608
        assert said in server.call("GET", "/readyz").problem(503)
        eventually(lambda: server.call("GET", "/v1/jobs").status == 503)
        for method, path, body in [
            ("GET", f"/v1/jobs/{job_id}", None),
            ("GET", f"/v1/jobs/{job_id}/events", None),
            ("POST", "/v1/jobs", {**JOB, "seed": 1}),
            ("POST", f"/v1/jobs/{job_id}/cancel", None),
        ]:
            answer = server.call(method, path, body)
            assert said in answer.problem(503)
            assert answer.headers["retry-after"] == "5"
        assert server.call("GET", "/healthz").status == 200
        execute(store_url, f"DELETE FROM {VERSION_TABLE}")  # noqa: S608
        execute(store_url, f"INSERT INTO {VERSION_TABLE} VALUES ('{HEAD}')")  # noqa: S608
        eventually(lambda: server.call("GET", "/v1/jobs").status == 200)
        (job,) = server.call("GET", "/v1/jobs").json["jobs"]
        assert (job["id"], job["state"]) == (job_id, "queued")

    @both_databases
    def test_a_store_without_a_schema_is_not_ready(self, server, store_url):
        execute(store_url, f"DROP TABLE {VERSION_TABLE}")
        said = server.call("GET", "/readyz").problem(503)
        assert said == "the store cannot be used: the server's log says why"


class TestReadiness:
    def test_it_is_ready_while_other_tables_are_locked(self, postgres_url):
        settings = ApiSettings(Settings(postgres_url), lock_s=1, no_auth=True)
        with serving(settings) as server, superuser(postgres_url) as other:
            with other.transaction():
                other.execute("LOCK TABLE jobs")
                with ThreadPoolExecutor(60) as pool:
                    posts = [
                        pool.submit(server.call, "POST", "/v1/jobs", {**JOB, "seed": seed})
                        for seed in range(60)
                    ]
                    assert server.call("GET", "/readyz").status == 200
                    details = {post.result().problem(503) for post in posts}
            assert details <= {
                "the store does not answer: try again",
                "the server is busy: try again",
            }
            assert server.submit()["created"]

    def test_it_is_not_ready_while_the_store_takes_no_write(self, postgres_url):
        with (
            serving(ApiSettings(Settings(postgres_url), lock_s=1, no_auth=True)) as server,
            superuser(postgres_url) as other,
            other.transaction(),
        ):
            other.execute(f"LOCK TABLE {VERSION_TABLE}")
            said = server.call("GET", "/readyz").problem(503)
            assert said == "the store does not answer: try again"
            assert server.call("GET", "/healthz").status == 200

    def test_it_answers_in_time_where_the_store_does_not(self, monkeypatch):
        monkeypatch.setattr("api.state.PATIENCE_S", 0.05)
        answers = threading.Event()

        class Hanging:
            def check_schema(self) -> None:
                answers.wait()

            def check_writable(self) -> None:
                """It can be written, once it answers."""

        async def ask() -> None:
            readiness: Any = Readiness(Hanging())
            for _ in range(2):
                with pytest.raises(StoreUnreachable, match="did not answer within"):
                    await readiness.check()
            answers.set()
            with anyio.fail_after(30):
                await ready(readiness)

        async def ready(readiness: Readiness) -> None:
            while True:
                try:
                    await readiness.check()
                except StoreUnreachable:
                    continue
                return

        anyio.run(ask)

    def test_who_asks_often_costs_little(self, server, monkeypatch):
        """Nobody needs a key to ask."""
        monkeypatch.setattr("api.state.FRESH_S", 3600)
        probe, asked = server.app.state.api.readiness._probe, []

        @event.listens_for(probe._writer, "before_cursor_execute")
        def note(*arguments: Any) -> None:  # connection, cursor, statement, ...
            asked.append(arguments[2])

        for _ in range(20):
            assert server.call("GET", "/readyz").status == 200
        assert sum("UPDATE" in statement for statement in asked) == 1


class TestReadOnly:
    @both_databases
    def test_a_store_that_takes_no_writes_is_named(self, server, store_url):
        server.submit()
        api = server.app.state.api
        if store_url.startswith("sqlite"):
            for store in (api.store, api.readiness._probe):
                store.engine.dispose()
                event.listen(
                    store.engine,
                    "connect",
                    lambda connection, _: connection.execute("PRAGMA query_only = on"),
                )
        else:
            with superuser(store_url) as other:
                name = make_url(store_url).database
                other.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
                other.execute(
                    "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
        said = "the store cannot be written: its operator must look at its disk and its rights"
        assert server.call("GET", "/readyz").problem(503) == said
        assert server.call("POST", "/v1/jobs", {**JOB, "seed": 1}).problem(503) == said
        assert len(server.call("GET", "/v1/jobs").json["jobs"]) == 1


class TestFullDisk:
    FULL = "the store's disk is full: nothing was stored. Its operator must make room"

    def test_a_full_sqlite_file_takes_no_job_and_loses_none(self, sqlite_url, tmp_path):
        with serving(
            ApiSettings(Settings(sqlite_url), rate=(), submit_rate=(), no_auth=True)
        ) as server:
            engine = server.app.state.api.store.engine

            @event.listens_for(engine, "connect")
            def limit(connection: sqlite3.Connection, record: object) -> None:
                connection.execute("PRAGMA max_page_count = 1")  # as large as it is

            engine.dispose()  # so that each connection is made anew, with the limit
            seeds = iter(range(1000))
            taken = 0
            while (answer := self.post(server, next(seeds))).status == 202:
                taken += 1
            assert answer.problem(507) == self.FULL
            assert answer.json["type"].endswith(":store-full")
            assert str(tmp_path) not in answer.body.decode()
            jobs = server.call("GET", "/v1/jobs?limit=1000").json["jobs"]
            assert len(jobs) == taken
            event.remove(engine, "connect", limit)
            engine.dispose()
            assert self.post(server, next(seeds)).status == 202

    @staticmethod
    def post(server: Server, seed: int) -> Any:
        return server.call("POST", "/v1/jobs", {**JOB, "seed": seed})

    def is_not_ready_while_full(self, url: str, folder: Path) -> None:
        with serving(ApiSettings(Settings(url), no_auth=True)) as server:
            assert server.call("GET", "/readyz").status == 200
            filler = fill(folder)
            assert server.call("GET", "/readyz").problem(503) == self.FULL
            filler.unlink()
            assert server.call("GET", "/readyz").status == 200

    def test_a_full_disk_under_sqlite_is_not_ready(self, small_disk, monkeypatch):
        monkeypatch.setattr("api.state.FRESH_S", 0)
        folder = small_disk(4)
        self.is_not_ready_while_full(f"sqlite:///{folder / 'tuner.db'}", folder)

    @pytest.mark.slow
    def test_a_full_disk_under_postgresql_is_not_ready(self, small_disk, monkeypatch):
        monkeypatch.setattr("api.state.FRESH_S", 0)
        folder = small_disk(200)
        with tempfile.TemporaryDirectory(prefix="tuner-pg-", dir=folder) as home:
            postgres = Postgres(Path(home))
            postgres.start()
            url = postgres.url.render_as_string(hide_password=False)
            self.is_not_ready_while_full(url, folder)
            postgres.stop()


class TestGone:
    @pytest.mark.parametrize("which", ["tuner.db*", "tuner.db-wal"])
    def test_a_deleted_file_takes_no_job(self, which, tmp_path):
        path = tmp_path / "tuner.db"
        with serving(ApiSettings(Settings(f"sqlite:///{path}"), no_auth=True)) as server:
            server.submit()
            for file in tmp_path.glob(which):
                file.unlink()
            said = "a file of the store was deleted or replaced: its operator must stop the server "
            said += "and its workers, and start them again"
            for method, target in [("GET", "/readyz"), ("GET", "/v1/jobs"), ("POST", "/v1/jobs")]:
                answer = server.call(method, target, JOB if method == "POST" else None)
                assert answer.problem(503) == said
                assert str(path) not in answer.body.decode()
            assert not list(tmp_path.glob(which))  # nor is it made again
            assert server.call("GET", "/healthz").status == 200


def test_requests_that_waited_for_one_in_vain_fail_with_it():
    times = iter([0.0, 5.0, 3.0, 6.0])  # asked, failed; came before that; came after it
    question = Question(times.__next__)
    with pytest.raises(StoreUnreachable, match="away"), question.turn():
        raise StoreUnreachable("away")
    with pytest.raises(StoreUnreachable, match="away"), question.turn():
        pytest.fail("the store was asked again")
    with pytest.raises(StoreUnreachable, match="away"), question.turn(since=4.0):
        pytest.fail("the store was asked again")
    with question.turn():
        pass

"""The connections of a store: how often they ask the server, how long they wait, when they end."""

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import new_request, submit
from databases import both_databases, superuser
from servers import Postgres
from sqlalchemy import make_url, text
from store_writer import PROBLEM

from tuner.errors import StoreReplaced, StoreUnreachable
from tuner.store.connect import PoolLimits, connect
from tuner.store.database import HEAD, Database, try_file_lock
from tuner.store.jobs import JobStore
from tuner.store.keys import KeyStore, Scope
from tuner.store.postgres import GRACE_S, IDLE_S
from tuner.store.tables import VERSION_TABLE
from workers import run_job
from workers.nightly import run_nightly
from workers.service import EmbeddedWorker
from workers.settings import STORE_LIMITS, Settings

REQUEST = new_request(PROBLEM, "L40S", measure="predict")
IMPATIENT = PoolLimits(connection_s=0.2, statement_s=20, lock_s=0.2, connections=2)


def round_trips(store: Database, tmp_path: Path, call: Callable[[], object]) -> int:
    """How often the store's connection waited for its server, by libpq's own trace."""
    with store.engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
    with (tmp_path / "trace").open("w+b") as trace:
        driver.pgconn.trace(trace.fileno())
        call()
        driver.pgconn.untrace()
        trace.seek(0)
        return sum(b"ReadyForQuery" in line for line in trace)


def age(store: Database, seconds: float) -> None:
    """Let the store's connection look as if nobody had used it for so long."""
    with store.engine.connect() as connection:
        record: Any = connection.connection._connection_record
    record.info["since"] -= seconds


@contextlib.contextmanager
def frozen(store: Database) -> Iterator[None]:
    """Freeze the server's process behind the store's connection."""
    with store.engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        process = driver.info.backend_pid
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


class TestRoundTrips:
    """What a request costs on a server that is far away."""

    def test_one_for_what_one_statement_reads(self, postgres_url, tmp_path):
        with JobStore.open(postgres_url) as jobs:
            keys = KeyStore(jobs.database)
            token, job_id = keys.add("team", Scope.READ), submit(jobs, REQUEST).job.id
            keys.find(token)  # its first use is stored
            assert round_trips(jobs.database, tmp_path, lambda: keys.find(token)) == 1
            assert round_trips(jobs.database, tmp_path, lambda: jobs.get(job_id)) == 1
            assert round_trips(jobs.database, tmp_path, lambda: jobs.list()) == 1

    def test_an_idle_connection_is_asked_whether_it_lives(self, postgres_url, tmp_path):
        with JobStore.open(postgres_url) as jobs:
            jobs.counts()
            age(jobs.database, IDLE_S + 1)
            assert (
                round_trips(jobs.database, tmp_path, jobs.counts) == 1
            )  # `round_trips` itself asked
            with jobs.database.engine.connect() as connection:
                first: Any = connection.connection.driver_connection
            age(jobs.database, IDLE_S + 1)
            first.pgconn.finish()  # as a firewall does: without a word
            assert jobs.counts() == {}


class TestRestarts:
    def test_a_server_that_stops_is_unreachable_and_its_restart_fails_no_later_call(self):
        with tempfile.TemporaryDirectory(prefix="tuner-pg-") as home:
            server = Postgres(Path(home))
            server.start()
            with JobStore.open(server.url.render_as_string(hide_password=False)) as jobs:
                with jobs.database.read(), jobs.database.read():
                    jobs.counts()  # three connections in the pool
                with pytest.raises(StoreUnreachable), jobs.database.write() as connection:
                    server.stop()
                    connection.execute(text("SELECT 1"))
                with pytest.raises(StoreUnreachable):  # a new connection
                    jobs.counts()
                server.start()
                with jobs.database.read(), jobs.database.read():
                    assert jobs.counts() == {}
            server.stop()


class TestLimits:
    def test_a_locked_table_is_given_up(self, postgres_url):
        with JobStore.open(postgres_url, IMPATIENT) as jobs, superuser(postgres_url) as other:
            with other.transaction():
                other.execute("LOCK TABLE jobs")
                with pytest.raises(StoreUnreachable, match="lock timeout"):
                    jobs.counts()
                with pytest.raises(StoreUnreachable, match="lock timeout"):
                    submit(jobs, REQUEST)
            assert submit(jobs, REQUEST).created

    def test_a_statement_that_takes_too_long_is_given_up(self, postgres_url):
        with (
            JobStore.open(postgres_url, PoolLimits(statement_s=0.2)) as jobs,
            pytest.raises(StoreUnreachable, match="statement timeout"),
            jobs.database.read() as connection,
        ):
            connection.execute(text("SELECT pg_sleep(60)"))

    def test_a_server_that_is_frozen_is_given_up(self, postgres_url, monkeypatch):
        """A frozen server keeps none of its limits, and its kernel acknowledges what it is sent."""
        monkeypatch.setattr("tuner.store.postgres.GRACE_S", 0.1)
        monkeypatch.setattr("tuner.store.postgres.PING_S", 0.1)
        with JobStore.open(postgres_url, PoolLimits(statement_s=0.2)) as jobs:
            jobs.counts()
            with frozen(jobs.database):
                with pytest.raises(StoreUnreachable, match=r"did not answer within 0\.3 s"):
                    jobs.counts()
                assert jobs.counts() == {}  # over a new connection: one process is frozen
            with frozen(jobs.database):
                age(jobs.database, IDLE_S + 1)
                assert jobs.counts() == {}
            assert submit(jobs, REQUEST).created

    def test_workers_their_children_and_their_nights_give_it_up_too(
        self, postgres_url, monkeypatch
    ):
        def silence_s(_: object, store: Database, *args: object, **named: object) -> dict[str, Any]:
            with store.engine.connect() as connection:
                driver: Any = connection.connection.driver_connection
                return {"silence_s": driver.silence_s}

        settings = Settings(postgres_url)
        monkeypatch.setattr("workers.nightly.do_round", silence_s)
        worker = EmbeddedWorker(settings, gpus=())
        with run_job.open_database(postgres_url) as child, worker._database as parent:
            found = [silence_s(settings, store) for store in (child, parent)]
        limit = {"silence_s": STORE_LIMITS.statement_s + GRACE_S}
        assert [*found, run_nightly(settings)] == [limit] * 3

    @both_databases
    def test_a_pool_without_a_free_connection_is_given_up(self, store_url):
        with (
            JobStore.open(store_url, IMPATIENT) as jobs,
            jobs.database.read(),
            jobs.database.read(),
            pytest.raises(StoreUnreachable, match="limit of size 2"),
        ):
            jobs.counts()

    def test_sqlite_s_writers_of_one_process_give_up_too(self, sqlite_url):
        with JobStore.open(sqlite_url, IMPATIENT) as jobs, jobs.database.write():
            with pytest.raises(StoreUnreachable, match="it is being written"):
                submit(jobs, REQUEST)
            assert jobs.counts() == {}

    def test_by_default_nothing_is_cut_off(self, postgres_url):
        with Database.open(postgres_url) as store, store.read() as connection:
            for name in ("statement_timeout", "lock_timeout"):
                assert connection.execute(text(f"SHOW {name}")).scalar_one() == "0"

    def test_a_migration_takes_its_time(self, empty_postgres_url, monkeypatch):
        monkeypatch.setattr("tuner.store.postgres.GRACE_S", 0)
        with superuser(empty_postgres_url) as server:
            server.execute(
                "CREATE FUNCTION slow() RETURNS event_trigger LANGUAGE plpgsql AS "
                "$$ BEGIN PERFORM pg_sleep(0.5); END $$"
            )
            server.execute(
                "CREATE EVENT TRIGGER slow ON ddl_command_end WHEN TAG IN ('CREATE TABLE') "
                "EXECUTE FUNCTION slow()"
            )
            short = PoolLimits(statement_s=0.2, lock_s=0.2)
            with Database.open(empty_postgres_url, short) as store, store.read() as connection:
                version = text(f"SELECT version_num FROM {VERSION_TABLE}")  # noqa: S608
                assert connection.execute(version).scalar_one() == HEAD

    def test_the_url_s_own_options_win(self, postgres_url):
        url = make_url(postgres_url).update_query_dict({"options": "-c lock_timeout=7s"})
        text_of_url = url.render_as_string(hide_password=False)
        with Database.open(text_of_url, IMPATIENT) as store, store.read() as connection:
            for name, value in (("lock_timeout", "7s"), ("statement_timeout", "20s")):
                assert connection.execute(text(f"SHOW {name}")).scalar_one() == value

    @pytest.mark.parametrize("options", ["-c statement_timeout=0", "-cstatement_timeout=1min"])
    def test_a_url_with_a_limit_of_its_own_is_waited_for(self, postgres_url, options):
        url = make_url(postgres_url).update_query_dict({"options": options})
        engine = connect(url.render_as_string(hide_password=False), IMPATIENT)
        with engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            assert driver.silence_s is None
        engine.dispose()


class TestFiles:
    """SQLite goes on with a deleted file, and all that it writes is lost in the end."""

    @pytest.fixture
    def file(self, tmp_path):
        return tmp_path / "tuner.db"

    def test_a_deleted_file_is_refused(self, file):
        with JobStore.open(f"sqlite:///{file}") as jobs:
            submit(jobs, REQUEST)
            for one in file.parent.glob("tuner.db*"):
                one.unlink()
            for call in (jobs.counts, lambda: submit(jobs, REQUEST)):
                with pytest.raises(StoreReplaced, match="deleted or replaced"):
                    call()
            jobs.database.engine.dispose()  # new connections make no new file
            with pytest.raises(StoreReplaced):
                submit(jobs, REQUEST)
            assert not file.exists()

    def test_another_file_in_its_place_is_refused(self, file):
        other = file.with_name("other.db")
        Database.open(f"sqlite:///{other}").close()
        with JobStore.open(f"sqlite:///{file}") as jobs:
            other.replace(file)
            with pytest.raises(StoreReplaced, match="deleted or replaced"):
                submit(jobs, REQUEST)
        with JobStore.open(f"sqlite:///{file}") as jobs:  # as after a restart
            assert submit(jobs, REQUEST).created

    def test_a_new_one_is_its_owner_s_alone(self, file):
        below = file.parent / "data" / file.name
        before = os.umask(0o022)
        try:
            with JobStore.open(f"sqlite:///{below}") as jobs:
                submit(jobs, REQUEST)
                with try_file_lock(jobs.database.engine, "a name"):
                    modes = {one.name: one.stat().st_mode & 0o777 for one in below.parent.iterdir()}
        finally:
            os.umask(before)
        names = ("tuner.db", "tuner.db-wal", "tuner.db-shm", "tuner.db-names")
        assert modes == dict.fromkeys(names, 0o600)
        assert below.parent.stat().st_mode & 0o777 == 0o700

    def test_one_that_its_owner_shares_stays_shared(self, file):
        file.touch()
        file.chmod(0o660)
        with JobStore.open(f"sqlite:///{file}") as jobs:
            submit(jobs, REQUEST)
            modes = {one.stat().st_mode & 0o777 for one in file.parent.glob("tuner.db*")}
        assert modes == {0o660}

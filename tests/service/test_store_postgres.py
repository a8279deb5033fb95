"""What a PostgreSQL server, or a process stopped on it, might do to the others."""

from datetime import datetime, timedelta, timezone

import psycopg
import pytest
from cases import new_request, submit
from clocks import Watcher
from sqlalchemy import make_url, text
from store_writer import PROBLEM
from worker_processes import wait_for

from tuner.errors import StaleLease, UnusableStore
from tuner.jobs.job import LEASE, JobFilter, JobState
from tuner.store.database import utc_now
from tuner.store.job_rows import leased_row
from tuner.store.jobs import JobStore
from tuner.store.leases import Leases

REQUEST = new_request(PROBLEM, "L40S", measure="predict")


@pytest.fixture
def jobs(postgres_url):
    with JobStore.open(postgres_url) as opened:
        yield opened


def show(jobs: JobStore, name: str) -> object:
    with jobs.database.read() as connection:
        return connection.execute(text(f"SHOW {name}")).scalar_one()


def impatient(url: str) -> str:
    """The same database, for connections that it gives up sooner."""
    soon = {"options": "-c idle_in_transaction_session_timeout=200"}
    return make_url(url).update_query_dict(soon).render_as_string(hide_password=False)


def test_a_worker_stopped_in_a_transaction_does_not_keep_its_job(jobs, postgres_url):
    assert show(jobs, "idle_in_transaction_session_timeout") == "30s"
    job_id = submit(jobs, REQUEST).job.id
    with Leases.open(impatient(postgres_url)) as stopped:
        lease = stopped.claim([JobFilter(needs_gpu=False)], "stopped")
        assert lease is not None
        others = Watcher(Leases(jobs.database))
        others.watch(LEASE.total_seconds())
        with pytest.raises(UnusableStore), stopped.database.write() as connection:
            leased_row(connection, lease)
            (expired,) = wait_for(lambda: others.watch(5))  # in the middle of that transaction
            assert (expired.id, expired.state) == (job_id, JobState.QUEUED)
        with pytest.raises(StaleLease):  # it goes on, and writes nothing
            stopped.heartbeat(lease)


def test_a_worker_whose_clock_is_wrong_takes_no_lease_away(jobs, monkeypatch):
    leases = Leases(jobs.database)
    hour = timedelta(hours=1)
    for wrong in (utc_now() + hour, utc_now() - hour):
        monkeypatch.setattr("tuner.store.database.utc_now", lambda wrong=wrong: wrong)
        job_id = submit(jobs, REQUEST).job.id
        lease = leases.claim([JobFilter(needs_gpu=False)], "worker")  # at once, whoever posted it
        assert lease is not None
        expires_at = jobs.get(job_id).lease_expires_at
        assert expires_at is not None
        assert abs(expires_at - LEASE - datetime.now(timezone.utc)) < hour / 2
        assert Watcher(leases).watch(30) == []
        leases.fail(lease, "done with")


def test_the_server_s_own_isolation_level_is_not_taken_over(postgres_url):
    plain = make_url(postgres_url).set(drivername="postgresql")
    with psycopg.connect(plain.render_as_string(hide_password=False), autocommit=True) as server:
        name = plain.database
        server.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    with JobStore.open(postgres_url) as jobs:
        assert show(jobs, "transaction_isolation") == "read committed"
        with jobs.database.write() as connection:
            level = connection.execute(text("SHOW transaction_isolation")).scalar_one()
            assert level == "read committed"

"""Jobs without progress are taken back, whatever a heartbeat or a clock says, on each database."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import pytest
from cases import new_request, submit
from clocks import Clock, Watcher
from databases import both_databases
from psycopg.errors import DiskFull
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import OperationalError
from store_writer import KEY, POINTS, PROBLEM, batch

from api.streams import pace_of
from tuner.errors import StoreFull
from tuner.jobs.attempts import AttemptLimits
from tuner.jobs.job import MAX_ATTEMPTS, PLANNED, JobFilter, JobState, Lease
from tuner.jobs.workers import WorkerInfo
from tuner.problems.points import Candidate
from tuner.problems.results import Outlook
from tuner.store.job_rows import REFUSALS
from tuner.store.leases import Leases
from tuner.store.results import ResultStore
from tuner.store.workers import WorkerStore
from workers.service import GRACE_S

REQUEST = new_request(PROBLEM, "L40S", measure="predict")
ANY = [JobFilter(needs_gpu=False)]
LIMITS = AttemptLimits(start_s=100.0, first_trial_s=200.0, next_trial_s=300.0, attempt_s=1000.0)


@pytest.fixture
def lease(jobs, leases):
    submit(jobs, REQUEST)
    found = leases.claim(ANY, "worker")
    assert found is not None
    return found


@contextmanager
def disk_full(engine: Engine) -> Iterator[None]:
    """Have the database refuse every change, as it does where its disk is full."""

    def refuse(
        connection: Connection, cursor: object, statement: str, parameters: object, *_: object
    ) -> None:
        if statement.startswith(("UPDATE", "INSERT")):
            sqlite = connection.dialect.name == "sqlite"
            full = sqlite3.OperationalError("database or disk is full") if sqlite else DiskFull()
            raise OperationalError(statement, parameters, full)

    event.listen(engine, "before_cursor_execute", refuse)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", refuse)


def renew(leases: Leases, lease: Lease, clock: Clock, watcher: Watcher, seconds: float) -> list:
    """Watch for some time in which a parent sends its heartbeats."""
    taken = []
    for _ in range(int(seconds / 10)):
        clock.advance(timedelta(seconds=10))
        leases.heartbeat(lease)
        taken += watcher.watch(10)
        if taken:
            break
    return taken


def test_a_worker_that_renews_its_lease_and_never_begins_is_set_aside(
    jobs, leases, lease, clock, store
):
    workers = WorkerStore(store, clock)
    workers.beat(WorkerInfo("worker", "w@here", "here", "", "", None, (), {}))
    watcher = Watcher(leases, LIMITS)
    assert renew(leases, lease, clock, watcher, LIMITS.start_s + GRACE_S - 5) == []
    (taken,) = renew(leases, lease, clock, watcher, 20)
    assert (taken.state, taken.attempts) == (JobState.QUEUED, 0)
    assert "did not begin to tune in 115 s" in taken.error
    assert workers.list()[0].reason == taken.error
    clock.advance(timedelta(minutes=1))
    assert leases.claim(ANY, "worker") is None
    assert leases.claim(ANY, "another") is not None


@pytest.mark.parametrize("with_trials", [False, True])
def test_a_child_that_hangs_loses_its_job(jobs, leases, lease, clock, with_trials):
    watcher = Watcher(leases, LIMITS)
    leased = leases.store(lease)
    run = leased.begin_run(KEY)
    limit_s = LIMITS.first_trial_s
    if with_trials:
        watcher.watch(5)
        leased.add_trials(run, batch(0))
        limit_s = LIMITS.next_trial_s
    assert renew(leases, lease, clock, watcher, limit_s + GRACE_S - 5) == []
    (taken,) = renew(leases, lease, clock, watcher, 30)
    assert (taken.state, taken.attempts) == (JobState.QUEUED, 1)
    assert "trial in" in taken.error


@both_databases
def test_each_trial_is_progress_until_the_attempt_takes_too_long(jobs, leases, lease, clock):
    watcher = Watcher(leases, LIMITS)
    leased = leases.store(lease)
    run = leased.begin_run(KEY)
    for at in range(4):
        leased.add_trials(run, batch(at))
        assert renew(leases, lease, clock, watcher, 240) == []
    leased.add_trials(run, batch(5))
    (taken,) = renew(leases, lease, clock, watcher, 240)
    assert "was not done in 1015 s" in taken.error


@pytest.mark.parametrize("jump", [timedelta(hours=1), -timedelta(hours=1), timedelta(minutes=5)])
def test_no_clock_takes_a_living_worker_s_job(leases, lease, clock, jump):
    watcher = Watcher(leases)
    watcher.watch(10)
    clock.advance(jump)
    assert watcher.watch(30) == []
    assert renew(leases, lease, clock, watcher, 120) == []


@pytest.mark.parametrize("jump", [timedelta(hours=1), -timedelta(hours=1)])
def test_no_clock_keeps_a_dead_worker_s_job(leases, lease, clock, jump):
    watcher = Watcher(leases)
    clock.advance(jump)
    assert len(watcher.watch(60)) == 1
    again = leases.claim(ANY, "another")
    assert again is not None


def test_a_reconciler_that_slept_takes_nothing_when_it_wakes(leases, lease):
    watcher = Watcher(leases)
    watcher.watch(5)
    watcher.now += 3600
    assert watcher.watch(5) == []


def test_a_full_disk_takes_no_living_worker_s_job(leases, lease, clock):
    watcher = Watcher(leases)
    with disk_full(leases.database.engine):
        for _ in range(12):  # a minute
            with suppress(StoreFull):
                watcher.watch(5)
            with pytest.raises(StoreFull):
                leases.heartbeat(lease)
    assert watcher.watch(5) == []  # this one was quicker than the worker, which tries again
    clock.advance(timedelta(minutes=1))
    leases.heartbeat(lease)
    assert watcher.watch(40) == []
    assert len(watcher.watch(20)) == 1  # the worker died: nothing is held for ever


@both_databases
def test_a_job_that_changed_since_it_was_seen_is_left_alone(jobs, leases, lease):
    seen = leases.held()[lease.job_id]
    leases.store(lease).begin_run(KEY)
    from tuner.jobs.attempts import Exceeded  # noqa: PLC0415

    assert leases.take_back(lease.job_id, seen, Exceeded("too late")) is None
    assert jobs.get(lease.job_id).state is JobState.RUNNING


def test_a_job_that_no_worker_can_begin_is_dead_in_the_end(jobs, leases, clock):
    job_id = submit(jobs, REQUEST).job.id
    refused = 0
    while (found := leases.claim(ANY, f"worker {refused}")) is not None:
        leases.refuse(found, "no torch")
        refused += 1
        clock.advance(timedelta(minutes=1))
    assert jobs.get(job_id).state is JobState.DEAD
    assert refused == REFUSALS + MAX_ATTEMPTS


def test_events_say_what_a_run_expects_and_the_incumbents_times(jobs, leases, lease, clock):
    leased = leases.store(lease)
    run = leased.begin_run(KEY)
    own = batch(0)[7]
    other = batch(3)[0].candidate.config  # never tried
    point = own.candidate.point
    configs = {"default": own.candidate.config, "shipped": other}
    leased.expect(run, Outlook(250, {point: configs, POINTS[0]: {}}))
    (planned,) = jobs.latest_events(lease.job_id, 1, PLANNED)
    assert planned.data["to_try"] == 250
    assert [one["point"] for one in planned.data["incumbents"]] == ["M=1 down", "M=1 up"]
    leased.add_trials(run, batch(0))
    clock.advance(timedelta(minutes=2))
    leased.add_trials(run, batch(1))
    first, second = jobs.latest_events(lease.job_id, 2)
    assert first.data["incumbents_us"] == {str(point): {"default": 7.5}}
    assert (first.data["statuses"], second.data["incumbents_us"]) == ({"ok": 100}, {})
    pace = pace_of(jobs.latest_events(lease.job_id, 200))
    assert pace == (100.0, 100.0)
    assert pace_of(jobs.latest_events(lease.job_id, 2)) == (50.0, 50.0)
    assert pace_of(jobs.latest_events(lease.job_id, 1)) is None
    results = ResultStore(leases.database)
    asked = [Candidate(point, config) for config in configs.values()]
    assert results.times_of(run.id, asked) == {asked[0]: 7.5}

"""What monitoring reads of the store, on each database."""

from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest
from cases import new_request, submit
from databases import both_databases
from scraping import add_worker
from sqlalchemy import update
from store_writer import PROBLEM

from tuner.errors import UnusableStore
from tuner.jobs.job import JobFilter, JobState
from tuner.jobs.workers import ALIVE
from tuner.store.database import _VERSION, utc_now
from tuner.store.jobs import JobStore
from tuner.store.leases import Leases
from tuner.store.nights import NightStore, Round
from tuner.store.tables import jobs as table
from tuner.store.workers import KNOWN, Figures, JobTimes, NewestNights

ON_GPU = new_request(PROBLEM, "L40S")
PREDICTION = replace(ON_GPU, measure="predict")
ALL = [JobFilter(needs_gpu=True), JobFilter(needs_gpu=False)]


@pytest.fixture
def leases(store_url):
    with Leases.open(store_url) as opened:
        yield opened


@pytest.fixture
def figures(leases):
    return Figures(leases.database)


@both_databases
def test_an_empty_store(figures):
    found = figures.read()
    assert (found.devices, found.queues, found.held, found.overdue) == (frozenset(), [], {}, 0)
    assert (found.workers, found.nights) == ([], NewestNights(None, None, {}))
    ends = (JobState.DONE, JobState.FAILED, JobState.CANCELLED, JobState.DEAD)
    assert figures.finished() == dict.fromkeys(ends, 0)


@both_databases
def test_queues_have_their_length_and_the_age_of_their_oldest_job(leases, figures):
    def post(seconds_ago: int, **changes: Any) -> None:
        at = utc_now() - timedelta(seconds=seconds_ago)
        submit(JobStore(leases.database, lambda: at), replace(ON_GPU, **changes))

    post(100, seed=1)
    post(1000, seed=2)
    post(50, measure="predict")
    post(10, device="NVIDIA_H200")
    found = figures.read()
    assert found.devices == {"NVIDIA_L40S", "NVIDIA_H200"}
    queues = {(one.device, one.needs_gpu): one for one in found.queues}
    assert {kind: one.jobs for kind, one in queues.items()} == {
        ("NVIDIA_L40S", True): 2,
        ("NVIDIA_L40S", False): 1,
        ("NVIDIA_H200", True): 1,
    }
    # A busy machine makes them older, and nothing makes them younger.
    assert 1000 <= queues["NVIDIA_L40S", True].oldest_s < 1000 + 300
    assert 50 <= queues["NVIDIA_L40S", False].oldest_s < 50 + 300


@both_databases
def test_a_device_stays_when_all_its_jobs_are_done(leases, figures):
    jobs = JobStore(leases.database)
    submit(jobs, ON_GPU)
    lease = leases.claim(ALL, "me")
    assert lease is not None
    held = figures.read()
    assert held.held == {(JobState.LEASED, "NVIDIA_L40S"): 1}
    assert held.queues == []
    leases.fail(lease, "no")
    jobs.cancel(submit(jobs, PREDICTION).job.id)
    ended = figures.read()
    assert (ended.held, ended.queues, ended.devices) == ({}, [], {"NVIDIA_L40S"})
    counts = figures.finished()
    assert (counts[JobState.FAILED], counts[JobState.CANCELLED], counts[JobState.DONE]) == (1, 1, 0)


@both_databases
def test_leases_that_nobody_takes_back_are_overdue(leases, figures):
    submit(JobStore(leases.database), ON_GPU)
    lease = leases.claim(ALL, "stopped")
    assert lease is not None
    with leases.database.write() as connection:  # its lease's time is up
        past = utc_now() - timedelta(seconds=1)
        connection.execute(update(table).values(lease_expires_at=past))
    assert figures.read().overdue == 1
    leases.heartbeat(lease)
    assert figures.read().overdue == 0


@both_databases
def test_workers_count_while_they_are_seen(leases, figures):
    now = utc_now()
    add_worker(leases, 1)
    add_worker(leases, 2, device="", devices=["NVIDIA_H200"], state="set_aside")
    add_worker(leases, 3, device="NVIDIA_A100", seen_at=now - ALIVE - timedelta(seconds=1))
    add_worker(leases, 4, device="NVIDIA_B200", seen_at=now - KNOWN - timedelta(seconds=1))
    found = figures.read()
    # The workers of the A100 are gone, but not forgotten: its series go on, at zero.
    assert found.devices == {"NVIDIA_L40S", "NVIDIA_A100"}
    on_gpu, without = sorted(found.workers, key=lambda one: one.state)
    assert (on_gpu.device, on_gpu.state) == ("NVIDIA_L40S", "active")
    assert on_gpu.engines == ("sglang==0.5.16",)
    assert on_gpu.serves("NVIDIA_L40S", needs_gpu=True)
    assert not on_gpu.serves("NVIDIA_H200", needs_gpu=True)
    assert on_gpu.serves("NVIDIA_H200", needs_gpu=False)  # it predicts for all devices
    assert not without.serves("NVIDIA_H200", needs_gpu=False)  # it is set aside
    mended = replace(without, state="active")
    assert mended.serves("NVIDIA_H200", needs_gpu=False)
    assert not mended.serves("NVIDIA_L40S", needs_gpu=False)


@both_databases
def test_the_last_nights(leases, figures):
    nights = NightStore(leases.database)
    began = nights.begin("nightly", date(2026, 11, 20))
    assert began
    nights.finish("nightly", date(2026, 11, 20), Round(began), {"submitted": ["a"], "errors": []})
    first = figures.read().nights
    assert first.finished_at is not None
    assert (first.summary["submitted"], first.summary["errors"]) == (["a"], [])
    assert nights.begin("nightly", date(2026, 11, 21))  # and it was killed
    second = figures.read().nights
    assert second.started_at is not None and first.started_at is not None
    assert second.started_at > first.started_at
    assert (second.finished_at, second.summary) == (first.finished_at, first.summary)


@both_databases
def test_the_times_of_a_job_are_for_the_holder_of_its_lease(leases, figures):
    job = submit(JobStore(leases.database), ON_GPU).job
    first = leases.claim(ALL, "first")
    times = figures.job_times(first)
    assert times is not None and times.started_at is not None
    assert times == JobTimes(JobState.LEASED, job.created_at, times.started_at, None)
    leases.release(first)
    second = leases.claim(ALL, "second")
    leases.fail(second, "no")
    assert figures.job_times(first) is None  # it is not its to count
    ended = figures.job_times(second)
    assert ended is not None and ended.finished_at is not None
    assert (ended.state, ended.started_at) == (JobState.FAILED, times.started_at)


@both_databases
def test_a_newer_schema_is_no_store_to_read(leases, figures):
    with leases.database.write() as connection:
        connection.execute(update(_VERSION).values(version_num="9999"))
    with pytest.raises(UnusableStore, match="9999"):
        figures.read()


@both_databases
def test_the_pool(figures):
    pool = figures.pool()
    with figures.database.read():
        use = figures.pool()
        assert (use.size, use.used) == (pool.size, 1)

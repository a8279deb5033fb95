"""Workers on hosts that differ: each job is done where its engine is, and a broken host harms none.

Real worker processes, on a real Redis and PostgreSQL.
"""

import os
from contextlib import ExitStack
from dataclasses import replace

import pytest
from cases import submit
from worker_processes import celery_worker, other_host, predict, replay, wait_for

from tuner.jobs.job import Job, JobState
from tuner.store.jobs import JobStore, LocalQueue
from tuner.store.leases import Leases
from tuner.store.workers import WorkerStore
from workers.machine import Registration, describe
from workers.worker import Worker

VERSIONS = ("0.5.12", "0.5.16")


@pytest.fixture
def jobs(postgres_url):
    with JobStore.open(postgres_url) as opened:
        yield opened


def finished(jobs: JobStore, job_id: str) -> Job:
    return wait_for(lambda: job if (job := jobs.get(job_id)).state.finished else None, 120)


def alive(jobs: JobStore, count: int) -> None:
    workers = WorkerStore(jobs.database)
    wait_for(lambda: len(workers.list(living=True)) == count)


@pytest.mark.slow
def test_each_job_is_done_by_a_worker_that_has_its_engine(jobs, postgres_url, redis_url, tmp_path):
    with ExitStack() as stack:
        for version in VERSIONS:
            more = other_host(tmp_path, version, version)
            log = tmp_path / f"{version}.log"
            stack.enter_context(celery_worker(postgres_url, redis_url, log, **more))
        alive(jobs, len(VERSIONS))
        queue = LocalQueue(jobs.database)
        pinned = [
            submit(jobs, replace(replay(seed), engine=f"sglang=={version}")).job.id
            for seed in range(3)
            for version in VERSIONS
        ]
        unpinned = [submit(jobs, replay(seed)).job.id for seed in range(10, 13)]
        done = [finished(jobs, job_id) for job_id in (*pinned, *unpinned)]
        assert {one.state for one in done} == {JobState.DONE}
        assert {one.attempts for one in done} == {1}
        for one in done:
            worker = one.owner.partition("@")[0]
            assert one.request.engine == f"sglang=={worker}"
        unknown = submit(jobs, replace(replay(), engine="sglang==0.4.4")).job
        waiting = queue.waiting(unknown)
        never = "no worker for predictions of NVIDIA_H200 and sglang 0.4.4 was ever seen"
        assert waiting == f"{never}: start `tuner worker` on a host with sglang 0.4.4"


def test_a_worker_without_triton_refuses_what_it_cannot_compile(sqlite_url, tmp_path, monkeypatch):
    environ = {**os.environ, **other_host(tmp_path, "broken", "0.5.16", lacks="triton")}
    with Leases.open(sqlite_url) as leases:
        jobs, workers = JobStore(leases.database), WorkerStore(leases.database)
        registration = Registration(workers, describe(None, None, "broken"))
        registration.beat()
        broken = Worker(leases, registration, {**environ, "TUNER_DATABASE_URL": sqlite_url})
        monkeypatch.setattr(broken._stopping, "wait", lambda pause_s: None)
        posted = [submit(jobs, predict(seed)).job.id for seed in range(3)]
        assert broken.drain() == 2
        broken.stop()
        (aside,) = workers.list()
        assert aside.doing == "set aside" and "Triton" in aside.reason
        assert {jobs.get(one).attempts for one in posted} == {0}
        kinds = [event.kind for one in posted for event in jobs.events(one)]
        assert kinds.count("refused") == 2

"""An urgent job gets the idle GPUs of its host: which ones, and when they are given back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cases import FP8
from clocks import Clock
from databases import both_databases
from worker_processes import wait_for

from tuner.jobs.job import Job, JobRequest, JobState, Lease, Priority
from tuner.jobs.workers import WorkerInfo
from tuner.measure.gpu import child_env
from tuner.store import JobStore, Leases, Store
from tuner.store.workers import WorkerStore
from workers import run_job
from workers.child import GPU_VARIABLE
from workers.embedded import EmbeddedWorker
from workers.gpus import LocalGpu
from workers.settings import Settings

ENGINE = "sglang==0.5.16"
REQUEST = JobRequest(FP8, "H200", ENGINE)


def worker(number: int, **changes: object) -> WorkerInfo:
    info = WorkerInfo(
        id=f"w{number}",
        name=f"w{number}",
        host="host",
        gpu=f"GPU-{number}",
        device="NVIDIA_H200",
        devices=None,
        engines=(ENGINE,),
        packages={},
    )
    return replace(info, **changes)


HOST = [worker(number) for number in range(4)]


@pytest.fixture
def workers(store: Store, clock: Clock) -> WorkerStore:
    """The rows of a host with four GPUs."""
    rows = WorkerStore(store._engine, clock)
    for one in HOST:
        rows.beat(one)
    return rows


def post(jobs: JobStore, seed: int = 0, priority: Priority = Priority.URGENT) -> Job:
    return jobs.submit(replace(REQUEST, seed=seed), client="team", priority=priority).job


def claim(leases: Leases, info: WorkerInfo) -> Lease | None:
    return leases.claim(info.filters(), info.id, info.preferred())


def claimed(leases: Leases, info: WorkerInfo) -> Lease:
    lease = claim(leases, info)
    assert lease is not None
    return lease


@both_databases
def test_an_urgent_job_gets_all_idle_gpus_of_its_host_until_it_has_ended(
    jobs: JobStore, leases: Leases, workers: WorkerStore
) -> None:
    job = post(jobs)
    lease = claimed(leases, HOST[1])
    assert lease.gpus == ("GPU-0", "GPU-2", "GPU-3")
    assert jobs.events(job.id)[-1].data == {"owner": "w1", "attempt": 1, "gpus": 4}
    assert {one.job_id for one in workers.list()} == {job.id}  # all of them are busy with it
    post(jobs, 1, Priority.NORMAL)
    others = [HOST[0], HOST[2], HOST[3]]
    assert [claim(leases, info) for info in others] == [None] * 3
    leases.fail(lease, "no such kernel")  # its processes may still end
    assert [claim(leases, info) for info in others] == [None] * 3
    assert claimed(leases, HOST[1]).gpus == ()  # the next job is not urgent
    post(jobs, 2, Priority.NORMAL)
    assert claimed(leases, HOST[0]).gpus == ()


def test_other_jobs_get_one_gpu(jobs: JobStore, leases: Leases, workers: WorkerStore) -> None:
    post(jobs, priority=Priority.NORMAL)
    assert claimed(leases, HOST[0]).gpus == ()
    jobs.submit(replace(REQUEST, measure="predict"), client="team", priority=Priority.URGENT)
    assert claimed(leases, HOST[1]).gpus == ()


def test_urgent_jobs_that_wait_get_a_gpu_each_and_the_last_one_the_rest(
    jobs: JobStore, leases: Leases, workers: WorkerStore
) -> None:
    for seed in range(3):
        post(jobs, seed)
    found = [claimed(leases, info).gpus for info in HOST[:3]]
    assert found == [(), (), ("GPU-3",)]


def test_no_gpu_is_taken_from_a_job(jobs: JobStore, leases: Leases, workers: WorkerStore) -> None:
    post(jobs, 0, Priority.NORMAL)
    claimed(leases, HOST[0])
    jobs.submit(replace(REQUEST, measure="predict"), client="team")
    claimed(leases, HOST[1])  # it predicts, and its process may start compilers
    post(jobs, 1)
    assert claimed(leases, HOST[2]).gpus == ("GPU-3",)


def test_a_lent_gpu_is_not_lent_again(jobs: JobStore, leases: Leases, workers: WorkerStore) -> None:
    workers.drain("w3")
    post(jobs)
    assert claimed(leases, HOST[0]).gpus == ("GPU-1", "GPU-2")
    workers.resume("w3")
    post(jobs, 1)
    assert claimed(leases, HOST[3]).gpus == ()


@pytest.mark.parametrize("why", ["other host", "other type", "drained", "set aside", "stopped"])
def test_only_workers_that_would_take_the_job_lend_their_gpu(
    why: str, jobs: JobStore, leases: Leases, workers: WorkerStore
) -> None:
    if why == "other host":
        workers.beat(worker(4, host="elsewhere"))
    elif why == "other type":
        workers.beat(worker(4, device="NVIDIA_L40S"))
    else:
        workers.beat(worker(4))
        if why == "drained":
            workers.drain("w4")
        elif why == "set aside":
            workers.set_aside("w4", "no torch")
        else:
            workers.stopped("w4")
    post(jobs)
    assert claimed(leases, HOST[0]).gpus == ("GPU-1", "GPU-2", "GPU-3")


def test_a_worker_that_is_gone_lends_nothing_and_has_borrowed_nothing(
    jobs: JobStore, leases: Leases, workers: WorkerStore, clock: Clock
) -> None:
    clock.advance(timedelta(seconds=40))
    for info in HOST[:3]:
        workers.beat(info)
    clock.advance(timedelta(seconds=10))  # w3 was not seen for 50 s
    post(jobs)
    assert claimed(leases, HOST[0]).gpus == ("GPU-1", "GPU-2")
    clock.advance(timedelta(seconds=40))  # and w0 neither
    workers.beat(HOST[1])
    post(jobs, 1)
    assert claim(leases, HOST[1]) is not None


def test_a_worker_that_was_restarted_does_not_use_its_lent_gpu(
    jobs: JobStore, leases: Leases, workers: WorkerStore
) -> None:
    post(jobs)
    lease = claimed(leases, HOST[0])
    again = replace(HOST[1], id="w1-again")
    workers.beat(again)
    post(jobs, 1, Priority.NORMAL)
    assert claim(leases, again) is None
    leases.fail(lease, "no such kernel")
    claimed(leases, HOST[0])
    post(jobs, 2, Priority.NORMAL)
    assert claim(leases, again) is not None


def test_a_gpu_whose_last_worker_died_with_a_job_is_not_lent(
    jobs: JobStore, leases: Leases, workers: WorkerStore
) -> None:
    post(jobs, 0, Priority.NORMAL)
    claimed(leases, HOST[1])
    workers.beat(replace(HOST[1], id="w1-again"))  # its processes may not have ended
    post(jobs, 1)
    assert claimed(leases, HOST[0]).gpus == ("GPU-2", "GPU-3")


def test_a_drained_borrower_gives_back(
    jobs: JobStore, leases: Leases, workers: WorkerStore
) -> None:
    post(jobs)
    lease = claimed(leases, HOST[0])
    workers.drain("w0")
    leases.fail(lease, "no such kernel")
    assert claim(leases, HOST[0]) is None
    post(jobs, 1, Priority.NORMAL)
    assert claim(leases, HOST[1]) is not None


@both_databases
def test_no_gpu_is_lent_and_used_at_once(
    jobs: JobStore, leases: Leases, workers: WorkerStore
) -> None:
    """All workers claim at the same moment, again and again."""
    with ThreadPoolExecutor(len(HOST)) as pool:
        for turn in range(8):
            post(jobs, 2 * turn)
            post(jobs, 2 * turn + 1, Priority.NORMAL)
            found = pool.map(lambda info: (info, claim(leases, info)), HOST)
            leases_now = [(info, lease) for info, lease in found if lease is not None]
            used = [gpu for info, lease in leases_now for gpu in (info.gpu, *lease.gpus)]
            assert len(used) == len(set(used)), turn
            assert any(lease.gpus for _, lease in leases_now), turn
            for _, lease in leases_now:
                leases.fail(lease, "the turn is over")
            drain(jobs, leases)


def drain(jobs: JobStore, leases: Leases) -> None:
    """End what is queued, and all loans."""
    for info in HOST:
        while lease := claim(leases, info):
            leases.fail(lease, "the turn is over")
    for job in jobs.list():
        if not job.state.finished:
            jobs.cancel(job.id)


def test_the_run_measures_on_its_own_and_the_lent_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GPU_VARIABLE, "GPU-1")
    request = run_job._session_request(REQUEST, Settings("sqlite://"), ("GPU-0", "GPU-2"))
    assert request.source.gpus == ("GPU-1", "GPU-0", "GPU-2")
    started: dict[str, Mapping[str, str]] = {}
    with run_job.open_run(request) as run:
        monkeypatch.setattr(run._workbench, "start", started.__setitem__)
        monkeypatch.setattr(run, "_first_candidates", lambda: [])
        run.start_early()
        assert {gpu: env["CUDA_VISIBLE_DEVICES"] for gpu, env in started.items()} == {
            gpu: child_env(run._farm, gpu)["CUDA_VISIBLE_DEVICES"]
            for gpu in ("GPU-0", "GPU-1", "GPU-2")
        }


def test_workers_lend_their_gpus_and_get_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers' own code, and a real process in place of the one that tunes."""
    monkeypatch.setattr("workers.child.MODULE", "lane_child")
    monkeypatch.setenv("LANES", str(tmp_path))
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    url = f"sqlite:///{tmp_path / 'tuner.db'}"
    gpus = [LocalGpu(f"GPU-{number}", "NVIDIA_H200") for number in range(3)]
    with JobStore.open(url) as jobs:
        host = EmbeddedWorker(Settings(url), gpus)
        host.start()
        try:
            urgent = begin(jobs, host, tmp_path, 0, Priority.URGENT)
            seen = wait_for(lambda: read(tmp_path, urgent))
            assert len(seen["gpus"]) == 2
            assert sorted(seen["visible"].split(",")) == ["GPU-0", "GPU-1", "GPU-2"]
            normal = [begin(jobs, host, tmp_path, seed, Priority.NORMAL) for seed in (1, 2)]
            end(jobs, tmp_path, urgent)
            for job_id in normal:
                seen = wait_for(lambda job_id=job_id: read(tmp_path, job_id))
                assert (seen["gpus"], len(seen["visible"].split(","))) == ([], 1)
                end(jobs, tmp_path, job_id)
        finally:
            host.stop()
        (ended,) = [event.at for event in jobs.events(urgent) if event.kind == "failed"]
        for job_id in normal:
            (leased,) = [event.at for event in jobs.events(job_id) if event.kind == "leased"]
            assert leased >= ended


def begin(jobs: JobStore, host: EmbeddedWorker, folder: Path, seed: int, priority: Priority) -> str:
    job = post(jobs, seed, priority)
    os.mkfifo(folder / job.id)
    host.announce(job)
    return job.id


def read(folder: Path, job_id: str) -> dict[str, object] | None:
    path = folder / f"{job_id}.json"
    return json.loads(path.read_text()) if path.exists() else None


def end(jobs: JobStore, folder: Path, job_id: str) -> None:
    (folder / job_id).write_text("as asked")
    wait_for(lambda: jobs.get(job_id).state is JobState.FAILED)

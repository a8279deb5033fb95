"""Compile work in the queue: who does it, who waits for it, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cases import FP8
from clocks import Clock
from databases import both_databases
from shared_cache_cases import assert_first_round_is_cached

from tuner.families.fused_moe.selection import MoeSelection
from tuner.jobs.ahead import compile_request, is_compiled_ahead, waits_for
from tuner.jobs.job import (
    COMPILE,
    Cost,
    Job,
    JobFilter,
    JobRequest,
    JobState,
    Lease,
    Priority,
    read_request,
)
from tuner.jobs.workers import SHARED_CACHE, WorkerInfo, WorkerState, WorkerStatus
from tuner.problems.registry import parse_problem
from tuner.problems.results import Totals
from tuner.store import JobStore, Leases, Store
from tuner.store.database import utc_now
from tuner.store.local_queue import LocalQueue
from tuner.store.submissions import Submission
from tuner.store.workers import WorkerStore
from tuner.tuning.request import Effort
from workers import run_job
from workers.child import AttemptOutcome
from workers.nightly import _submission
from workers.settings import Settings

ENGINE = "sglang==0.5.16"
REQUEST = JobRequest(FP8, "H200", ENGINE, selection=MoeSelection((1, 64)))
GPU = [JobFilter(needs_gpu=True)]
CPU = [JobFilter(needs_gpu=False, compiles=True)]


def worker(gpu: bool, cache: str | None = "abc", **changes: object) -> WorkerStatus:
    packages: Mapping[str, str] = {} if cache is None else {SHARED_CACHE: cache}
    info = WorkerInfo(
        id="one",
        name="one",
        host="host",
        gpu="GPU-1" if gpu else "",
        device="NVIDIA_H200" if gpu else "",
        devices=None,
        engines=(ENGINE,),
        packages=packages,
    )
    now = utc_now()
    status = WorkerStatus(info, WorkerState.ACTIVE, "", False, now, now, True, None)
    return replace(status, **changes)


def submit(jobs: JobStore, request: JobRequest = REQUEST, **more: object) -> tuple[Job, Job | None]:
    (answer,) = jobs.submit_all([Submission(request, ahead=True, **more)], client="team")
    return answer.job, answer.ahead


def claim(leases: Leases, filters: list[JobFilter]) -> Lease:
    lease = leases.claim(filters, "worker")
    assert lease is not None
    return lease


def test_jobs_are_compiled_ahead_only_where_both_sides_share_a_cache() -> None:
    gpu, cpu = worker(gpu=True), worker(gpu=False)
    assert is_compiled_ahead(REQUEST, [gpu, cpu])
    assert not is_compiled_ahead(replace(REQUEST, measure="predict"), [gpu, cpu])
    for others in (
        [gpu],
        [cpu],
        [gpu, worker(gpu=True)],
        [gpu, worker(gpu=False, cache=None)],
        [gpu, worker(gpu=False, cache="other")],
        [gpu, worker(gpu=False, alive=False)],
        [gpu, worker(gpu=False, drain=True)],
    ):
        assert not is_compiled_ahead(REQUEST, others)


def test_compile_work_is_for_workers_without_a_gpu_that_share_a_cache() -> None:
    assert [one.compiles for one in worker(gpu=False).info.filters()] == [True]
    assert [one.compiles for one in worker(gpu=False, cache=None).info.filters()] == [False]
    assert [one.compiles for one in worker(gpu=True).info.filters()] == [False, False]


def test_a_compile_request_travels_as_json_and_is_no_job_of_the_api() -> None:
    request = compile_request(REQUEST)
    assert read_request(request.as_json()) == request
    assert (request.needs_gpu, request.compiles, request.measure) == (False, True, COMPILE)
    assert request.key != REQUEST.key


@both_databases
def test_a_job_waits_for_its_compile_work_until_enough_is_compiled(
    jobs: JobStore, leases: Leases
) -> None:
    job, ahead = submit(jobs)
    assert ahead is not None
    assert ahead.request == compile_request(job.request)
    assert waits_for(jobs.get(job.id)) == f"job {ahead.id} compiles its kernels first"
    assert leases.claim(GPU, "gpu") is None
    assert leases.claim([JobFilter(needs_gpu=False)], "gpu") is None  # compiles for nobody
    lease = claim(leases, CPU)
    assert lease.job_id == ahead.id
    store = leases.ahead(lease)
    store.begin()
    store.add(10, enough=False)
    assert leases.claim(GPU, "gpu") is None
    store.add(400, enough=True)
    assert jobs.get(job.id).after_id is None
    assert claim(leases, GPU).job_id == job.id
    assert leases.look(lease).trial_count == 400
    store.finish(Totals(compile_s=5.0, extra={"cpu_s": 6.0}))
    done = jobs.get(ahead.id)
    assert (done.state, done.run_id, done.cost) == (JobState.DONE, None, Cost(0.0, 0.0, 6.0))
    kinds = [event.kind for event in jobs.events(ahead.id)]
    assert kinds == ["submitted", "leased", "running", "compiled", "compiled", "done"]


@pytest.mark.parametrize("end", ["fail", "cancel", "done"])
def test_a_job_goes_on_when_its_compile_work_ends_in_any_way(
    end: str, jobs: JobStore, leases: Leases
) -> None:
    job, ahead = submit(jobs)
    assert ahead is not None
    if end == "cancel":
        jobs.cancel(ahead.id)
    else:
        lease = claim(leases, CPU)
        if end == "fail":
            leases.fail(lease, "no such kernel")
        else:
            leases.ahead(lease).begin()
            leases.ahead(lease).finish(Totals())
    assert claim(leases, GPU).job_id == job.id


@pytest.mark.parametrize(
    ("priority", "most"), [(Priority.URGENT, 60), (Priority.NORMAL, 600)], ids=str
)
def test_a_job_waits_only_so_long_where_nobody_compiles(
    priority: Priority, most: int, jobs: JobStore, leases: Leases, clock: Clock
) -> None:
    job, _ = submit(jobs, priority=priority)
    clock.now += timedelta(seconds=most - 1)
    assert leases.claim(GPU, "gpu") is None
    clock.now += timedelta(seconds=2)
    assert claim(leases, GPU).job_id == job.id


@both_databases
def test_another_job_goes_before_the_one_that_waits(jobs: JobStore, leases: Leases) -> None:
    submit(jobs)
    other = jobs.submit(replace(REQUEST, seed=1), client="team").job
    assert claim(leases, GPU).job_id == other.id


def test_equal_jobs_share_their_compile_work(jobs: JobStore) -> None:
    first, ahead = submit(jobs)
    again, more = submit(jobs)
    assert (again.id, more) == (first.id, None)
    assert ahead is not None
    jobs.cancel(first.id)
    third, more = submit(jobs)  # the compile work of the first one goes on
    assert third.id != first.id
    assert more is None
    assert third.after_id == ahead.id
    assert jobs.queued_of("team", 10) == 1


def test_without_compile_work_a_job_is_queued_as_ever(jobs: JobStore, leases: Leases) -> None:
    job = jobs.submit(REQUEST).job
    assert (job.after_id, len(jobs.list())) == (None, 1)
    assert claim(leases, GPU).job_id == job.id


def test_a_cpu_worker_compiles_what_the_gpus_host_asks_for(
    jobs: JobStore,
    leases: Leases,
    store_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker's own code, with real compiles; then another host asks for the first round."""
    monkeypatch.setenv("TUNER_SHARED_CACHE", str(tmp_path / "shared"))
    monkeypatch.setenv("TUNER_SHARED_CACHE_KEY", "k" * 32)
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cpu"))
    monkeypatch.setattr("tuner.tuning.run.PASSES", 1)  # further passes compile more of the same
    spec = "block_gemm:N=512,K=512,dtype=fp8_w8a8,block=128x128"
    problem = parse_problem(spec)
    request = JobRequest(problem, "H200", ENGINE, effort=Effort.QUICK)
    request = replace(request, selection=type(request.selected)((64,)))
    job, ahead = submit(jobs, request)
    assert ahead is not None
    lease = claim(leases, CPU)
    settings = Settings(store_url)
    assert run_job.do_job(lease, leases, settings).outcome is AttemptOutcome.DONE
    assert jobs.get(job.id).after_id is None
    done = jobs.get(ahead.id)
    assert done.cost is not None
    assert done.cost.cpu_s > 0
    assert done.cost.gpu_s == 0

    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "gpu"))
    run = run_job.open_run(run_job._session_request(job.request, settings))
    with run:
        assert_first_round_is_cached(run)


def test_a_job_of_the_command_line_says_that_it_waits_and_what_it_will_take(
    store: Store, jobs: JobStore
) -> None:
    workers = WorkerStore.sharing(store)
    for one in (worker(gpu=True), worker(gpu=False)):
        workers.beat(replace(one.info, id=f"{one.info.gpu}-worker"))
    queue = LocalQueue.sharing(store)
    (answer,) = queue.submit_all([REQUEST], priority=Priority.NORMAL)
    assert answer.ahead is not None
    assert queue.waiting(answer.job) == f"job {answer.ahead.id} compiles its kernels first"
    assert answer.estimated_gpu_s == pytest.approx(9 + 4 * 40 * 18.4 / 1440, abs=0.1)
    assert [job.client for job in jobs.list()] == ["compile-ahead", "local"]


def test_the_night_has_its_jobs_compiled_first() -> None:
    both = [worker(gpu=True), worker(gpu=False)]
    assert _submission(REQUEST, both).ahead
    assert not _submission(REQUEST, both[:1]).ahead

"""Jobs that measure, through the queue: also on a host without torch, and on one that hangs."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import new_request, submit
from gpu_benches import this_device

sys.path.append(str(Path(__file__).parents[1]))
from worker_processes import tuning_child, wait_for

from tuner.engines.engine import find_engine
from tuner.families.fused_moe.family import MoeSelection
from tuner.jobs.attempts import AttemptLimits
from tuner.jobs.job import JobRequest, JobState
from tuner.problems.registry import parse_problem
from tuner.store.jobs import JobStore
from tuner.store.leases import Leases
from tuner.store.workers import WorkerStore
from tuner.tuning.request import Effort
from workers.machine import LocalGpu, Registration, describe, detect_gpus
from workers.worker import Worker, child_environ

pytestmark = pytest.mark.gpu
OTHER_HOST = Path(__file__).parents[1] / "service" / "other_host"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TUNER_DATABASE_URL", made := f"sqlite:///{tmp_path / 'tuner.db'}")
    return made


@pytest.fixture
def leases(url: str) -> Iterator[Leases]:
    with Leases.open(url) as opened:
        yield opened


def gpu_here() -> LocalGpu:
    (found,) = detect_gpus()
    return found


def worker(
    leases: Leases, name: str, limits: AttemptLimits | None = None, lacks: str = ""
) -> Worker:
    gpu = gpu_here()
    environ = child_environ(gpu.uuid)
    paths = [str(OTHER_HOST), environ.get("PYTHONPATH", "")]
    environ |= {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "HOST_LACKS": lacks}
    registration = Registration(WorkerStore(leases.database), describe(gpu, None, name))
    registration.beat()
    return Worker(leases, registration, environ, limits)


def measure(seed: int) -> JobRequest:
    return new_request(
        parse_problem("fused_moe:E=16,N=256,K=512,top_k=4,dtype=bfloat16"),
        this_device().name,
        engine=f"sglang=={find_engine('sglang').version}",
        selection=MoeSelection((8,)),
        effort=Effort.QUICK,
        seed=seed,
    )


def test_a_host_without_torch_is_set_aside_and_harms_no_job(leases: Leases) -> None:
    jobs, workers = JobStore(leases.database), WorkerStore(leases.database)
    posted = [submit(jobs, measure(seed)).job.id for seed in range(3)]
    bad = worker(leases, "bad", lacks="torch")
    assert bad.drain() == 2
    bad.stop()
    (aside,) = workers.list()
    assert (aside.doing, "torch" in aside.reason) == ("set aside", True), aside.reason
    good = worker(leases, "good")
    wait_for(lambda: good.drain() or jobs.get(posted[-1]).state.finished)
    wait_for(lambda: good.drain() or all(jobs.get(one).state.finished for one in posted))
    good.stop()
    found = [jobs.get(job_id) for job_id in posted]
    assert {(one.state, one.attempts) for one in found} == {(JobState.DONE, 1)}


def test_a_measuring_process_that_stands_still_loses_its_job(leases: Leases) -> None:
    jobs = JobStore(leases.database)
    job_id = submit(jobs, measure(7)).job.id
    good = worker(leases, "good", AttemptLimits(next_trial_s=30.0))
    thread = threading.Thread(target=good.drain)
    thread.start()
    wait_for(lambda: any(event.kind == "trials" for event in jobs.events(job_id)), 120)
    os.kill(wait_for(lambda: tuning_child(os.getpid())), signal.SIGSTOP)
    wait_for(lambda: any(event.kind == "requeued" for event in jobs.events(job_id)), 120)
    thread.join()
    (given_back,) = [event for event in jobs.events(job_id) if event.kind == "requeued"]
    assert "stored no further trial in 30 s" in given_back.data["reason"]
    wait_for(lambda: good.drain() or jobs.get(job_id).state.finished, 120)
    good.stop()
    assert (jobs.get(job_id).state, jobs.get(job_id).attempts) == (JobState.DONE, 2)

"""What the API, workers and beat show to Prometheus."""

import os
import signal
import socket
from datetime import date, timedelta
from pathlib import Path
from subprocess import PIPE, run

import pytest
from api_server import Server, serving
from cases import RECORDINGS, submit
from databases import both_databases
from scraping import Scrape, add_worker, fleet, running, scrape, scrape_port
from servers import free_ports, started_redis
from worker_processes import REPLAY, descendants, embedded, replay, wait_for
from worker_processes import running as is_running

from api.settings import ApiSettings
from tuner.jobs.job import JobFilter, JobState
from tuner.store.connect import connect
from tuner.store.database import Database, utc_now
from tuner.store.jobs import JobStore
from tuner.store.leases import Leases
from tuner.store.nights import NightStore, Round
from tuner.store.workers import Figures, WorkerStore
from workers.metrics import Metrics
from workers.settings import Settings

L40S = "NVIDIA_L40S"


def test_a_series_does_not_vanish_at_zero(server, store_url):
    job = server.submit()["id"]
    waiting = scrape(server)
    for seen, count in ((waiting, 1), (scrape_after_cancel(server, job), 0)):
        assert seen.value("tuner_jobs_unfinished", state="queued", device=L40S) == count
        assert seen.value("tuner_jobs_unfinished", state="running", device=L40S) == 0
        assert seen.value("tuner_queue_jobs", device=L40S, needs_gpu="true") == count
        assert seen.value("tuner_queue_jobs", device=L40S, needs_gpu="false") == 0
        assert seen.value("tuner_queue_workers", device=L40S, needs_gpu="true") == 0
        assert seen.value("tuner_workers", device=L40S, state="active") == 0
        oldest = seen.value("tuner_queue_oldest_seconds", device=L40S, needs_gpu="true")
        assert oldest is not None
        assert (oldest > 0) == bool(count)
        assert seen.value("tuner_store_up") == 1
        assert seen.value("tuner_jobs_finished", state="dead") == 0


def scrape_after_cancel(server: Server, job: str) -> Scrape:
    assert server.call("POST", f"/v1/jobs/{job}/cancel").status == 200
    return scrape(server)


@both_databases
def test_a_drained_worker_takes_no_jobs(server, store_url):
    """The alert `TunerNoWorker` depends on it: an operator may forget to resume a worker."""
    server.submit()
    with Leases.open(store_url) as leases:
        add_worker(leases, 1)
        add_worker(leases, 2)
        assert leases.claim([JobFilter(needs_gpu=True)], "worker-1")
        WorkerStore(leases.database).drain("host")
        add_worker(leases, 3, seen_at=utc_now() + timedelta(hours=1))  # the clock went back since
    seen = scrape(server)
    for state, count in {"active": 0, "draining": 1, "drained": 1, "set_aside": 0}.items():
        assert seen.value("tuner_workers", device=L40S, state=state) == count
    assert seen.value("tuner_queue_workers", device=L40S, needs_gpu="true") == 0
    assert seen.value("tuner_engine_workers", device=L40S, engine="sglang==0.5.16") == 2


@both_databases
def test_workers_and_nights(server, store_url):
    empty = scrape(server)
    assert empty.value("tuner_night_finished_timestamp_seconds") is None
    with Leases.open(store_url) as leases:
        add_worker(leases, 1)
        add_worker(leases, 2, state="set_aside", engines=["sglang==0.5.12", "sglang==0.5.16"])
        add_worker(leases, 3, device="", state="a state of a newer version")
        nights = NightStore(leases.database)
        began = nights.begin("nightly", date(2026, 11, 20))
        failed = [{"what": "nope", "why": "unknown"}]
        summary = {"errors": failed, "not_submitted": failed, "submitted": ["a", "b", "c"]}
        nights.finish("nightly", date(2026, 11, 20), Round(began), summary)
    seen = scrape(server)
    states = {
        state: seen.value("tuner_workers", device=L40S, state=state)
        for state in ("active", "draining", "drained", "set_aside")
    }
    assert states == {"active": 1, "draining": 0, "drained": 0, "set_aside": 1}
    assert seen.value("tuner_workers", device="none", state="active") is None
    assert seen.value("tuner_engine_workers", device=L40S, engine="sglang==0.5.16") == 2
    assert seen.value("tuner_engine_workers", device=L40S, engine="sglang==0.5.12") == 1
    assert seen.value("tuner_queue_workers", device=L40S, needs_gpu="true") == 1
    assert seen.value("tuner_night_errors") == 2
    assert seen.value("tuner_night_submitted") == 3
    began = seen.value("tuner_night_started_timestamp_seconds")
    ended = seen.value("tuner_night_finished_timestamp_seconds")
    assert began and ended and began <= ended


def test_a_scrape_outlives_the_store():
    away = "postgresql://tuner@127.0.0.1:1/tuner"
    seen = Scrape(Metrics(Figures(Database(connect(away)))).text().decode())
    assert seen.value("tuner_store_up") == 0
    assert seen.value("tuner_jobs_finished", state="dead") is None
    assert "process_resident_memory_bytes" in seen.families
    assert "tuner_build_info" in seen.families


def test_counting_finished_jobs_takes_a_hundredth_of_the_time(store_url, monkeypatch):
    now = 0.0
    monkeypatch.setattr("workers.metrics.time.monotonic", lambda: now)
    with Figures.open(store_url) as figures:
        counts = [0, 7, 8]

        def count() -> dict[JobState, int]:
            nonlocal now
            now += 2  # so long it takes
            return {JobState.DONE: counts.pop(0)}

        monkeypatch.setattr(figures, "finished", count)
        metrics = Metrics(figures)

        def done() -> float | None:
            return Scrape(metrics.text().decode()).value("tuner_jobs_finished", state="done")

        assert done() == 0
        now = 201
        assert done() == 0
        now = 202
        assert done() == 7
        assert counts == [8]


def test_the_pool_and_the_broker_are_shown(tmp_path):
    with started_redis("secret") as redis:
        settings = ApiSettings(
            Settings(f"sqlite:///{tmp_path / 'tuner.db'}", redis.url), no_auth=True
        )
        with serving(settings) as server:
            up = scrape(server)
            assert up.value("tuner_broker_up") == 1
            assert up.value("tuner_store_connections", state="used") == 0
            assert up.value("tuner_store_pool_size")
            sent = up.value("tuner_broker_messages_total", result="sent")
            assert sent is not None
            server.submit()
            wait_for(
                lambda: (
                    scrape(server).value("tuner_broker_messages_total", result="sent") == sent + 1
                )
            )
            redis.stop()
            assert scrape(server).value("tuner_broker_up") == 0


@pytest.fixture
def port():
    return free_ports(4)


@pytest.fixture
def environ(postgres_url, redis_url, port):
    return {
        "TUNER_DATABASE_URL": postgres_url,
        "TUNER_BROKER_URL": redis_url,
        "TUNER_METRICS_PORT": str(port),
    }


def test_a_fleet_shows_its_processes_on_one_port_starts_them_again_and_stops_them(environ, port):
    with (
        JobStore.open(environ["TUNER_DATABASE_URL"]) as jobs,
        running(fleet("--device", "H200", "--processes", "2"), environ) as parent,
    ):

        def seen() -> Scrape:
            found = wait_for(lambda: scrape_port(port))
            assert found
            return found

        def total(name: str, **labels: str) -> float:
            found = seen()
            return sum(found.value(name, worker=n, **labels) or 0 for n in "01")

        def members() -> list[int]:
            below = descendants(parent.pid).items()
            return [pid for pid, line in below if "workers.app" in line]

        wait_for(lambda: total("tuner_worker_up") == 2)
        first = seen()
        for worker in "01":
            assert first.value("tuner_worker_starts_total", worker=worker) == 1
            assert first.value("tuner_leases_expired_total", worker=worker) == 0
            assert first.value("tuner_leases_lost_total", worker=worker) == 0
            assert first.value("tuner_broker_up", worker=worker) == 1
            assert first.value("process_resident_memory_bytes", worker=worker)
            assert first.value("tuner_store_pool_size", worker=worker)

        posted = [submit(jobs, replay(seed)).job.id for seed in range(3)]
        missing = replay(recording=Path("/none.csv"))
        posted.append(submit(jobs, missing).job.id)
        wait_for(lambda: all(jobs.get(one).state.finished for one in posted))

        h200 = "NVIDIA_H200"
        wait_for(lambda: total("tuner_job_duration_seconds_count", device=h200, state="done") == 3)
        wait_for(
            lambda: total("tuner_job_duration_seconds_count", device=h200, state="failed") == 1
        )
        assert total("tuner_job_wait_seconds_count", device=h200) == 4
        assert total("tuner_job_wait_seconds_bucket", device=h200, le="+Inf") == 4
        assert total("tuner_attempts_total", device=h200, outcome="done") == 3
        assert total("tuner_attempts_total", device=h200, outcome="failed") == 1

        silent, killed = members()
        os.kill(silent, signal.SIGSTOP)  # a process that does not answer is down
        try:
            assert total("tuner_worker_up") == 1
        finally:
            os.kill(silent, signal.SIGCONT)
        wait_for(lambda: total("tuner_worker_up") == 2)

        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: total("tuner_worker_starts_total") == 3)
        wait_for(lambda: total("tuner_worker_up") == 2)

        second = members()
        assert killed not in second and len(second) == 2
        parent.terminate()
        assert parent.wait(60) == 0
        assert not any(map(is_running, second))


def test_a_port_that_is_taken_is_named(environ, port):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        ended = run(
            fleet("--device", "H200"), env={**os.environ, **environ}, stderr=PIPE, timeout=60
        )
    assert ended.returncode == 2
    said = ended.stderr.decode()
    assert f"TUNER_METRICS_PORT: cannot listen on 127.0.0.1, port {port}" in said


def test_an_embedded_worker_is_shown_by_its_api(tmp_path, monkeypatch):
    settings = Settings(f"sqlite:///{tmp_path / 'tuner.db'}", recordings=RECORDINGS)
    monkeypatch.setenv("TUNER_DATABASE_URL", settings.database_url)  # for the child
    monkeypatch.setenv("TUNER_RECORDINGS", str(RECORDINGS))
    with (
        embedded(settings) as worker,
        serving(ApiSettings(settings, no_auth=True), worker) as server,
    ):

        def done() -> float:
            name = "tuner_attempts_total"
            return scrape(server).value(name, device="NVIDIA_H200", outcome="done") or 0

        before = done()
        assert server.call("POST", "/v1/jobs", REPLAY).status == 202
        wait_for(lambda: done() == before + 1)

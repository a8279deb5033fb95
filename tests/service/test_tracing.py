"""One trace from a request to the trials of its job."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from api_server import JOB, Server, serving
from cases import FP8, RECORDINGS, submit
from sqlalchemy import select
from trace_collector import Collector, Span, trace_collector
from worker_processes import REPLAY, celery_worker, replay, wait_for

from api.settings import ApiSettings
from tuner.jobs.job import JobFilter, JobState
from tuner.store.jobs import JobStore
from tuner.store.leases import Leases
from tuner.store.tables import jobs as table
from tuner.store.workers import WorkerStore
from workers.machine import Registration, describe
from workers.settings import Settings
from workers.telemetry import checked_traceparent
from workers.worker import Worker

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE_ID}-{CALLER}-01"


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "x",
        f"00-{TRACE_ID.upper()}-{CALLER}-01",
        f"00-{'0' * 32}-{CALLER}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"ff-{TRACE_ID}-{CALLER}-01",
        f"{TRACEPARENT}-more",
        f"{TRACEPARENT}\n",
    ],
)
def test_an_invalid_traceparent_is_none(wrong):
    assert checked_traceparent(wrong) == ""
    assert checked_traceparent(TRACEPARENT) == TRACEPARENT


def stored_trace(jobs: JobStore, job_id: str) -> str:
    with jobs.database.read() as connection:
        found: str = connection.execute(
            select(table.c.trace).where(table.c.id == job_id)
        ).scalar_one()
        return found


def test_a_traceparent_passes_through_without_opentelemetry(store_url):
    with (
        serving(ApiSettings(Settings(store_url), no_auth=True)) as server,
        Leases.open(store_url) as leases,
    ):
        headers = {"traceparent": TRACEPARENT}
        body = {**JOB, "seed": 1}
        traced = server.call("POST", "/v1/jobs", body, headers).json["id"]
        plain = server.call("POST", "/v1/jobs", {**body, "seed": 2}).json["id"]
        broken = {"traceparent": "00-tampered"}
        ignored = server.call("POST", "/v1/jobs", {**body, "seed": 3}, broken).json["id"]
        jobs = JobStore(leases.database)
        assert stored_trace(jobs, traced) == TRACEPARENT
        assert stored_trace(jobs, plain) == stored_trace(jobs, ignored) == ""
        lease = leases.claim([JobFilter(needs_gpu=True)], "me")
        assert (lease.job_id, lease.trace) == (traced, TRACEPARENT)


def test_what_makes_spans_is_not_imported_without_an_endpoint():
    code = (
        "import sys, workers.app, workers.run_job, api.app, api.serve\n"
        "from workers.telemetry import start_tracing\n"
        "start_tracing('x')\n"
        "wanted = ('workers.otel', 'opentelemetry.sdk.trace', 'opentelemetry.exporter')\n"
        "print(*[name for name in sys.modules if name.startswith(wanted)])"
    )
    environ = {**os.environ, "TUNER_BROKER_URL": "redis://here"}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == ""


def test_an_endpoint_without_the_extra_is_a_warning():
    code = (
        "import sys; sys.modules['opentelemetry.sdk.trace'] = None\n"  # as if it were not installed
        "from workers.telemetry import start_tracing; start_tracing('x'); print('goes on')"
    )
    environ = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "goes on\n"
    assert "pip install 'engine-tuner[trace]'" in ran.stderr


@contextmanager
def api(environ: dict[str, str], log: Path) -> Iterator[Server]:
    """`tuner serve` without a worker, and a key for it."""
    tuner = [sys.executable, "-c", "from tuner.cli import main; main()"]
    made = subprocess.run(
        [*tuner, "keys", "add", "me"], env=environ, capture_output=True, text=True, check=True
    )
    with log.open("w") as out:
        process = subprocess.Popen(
            [*tuner, "serve", "--no-worker", "--port", "0"], env=environ, stderr=out
        )
    try:
        said = wait_for(lambda: [line for line in messages(log) if "Uvicorn running on" in line])
        port = int(said[0].partition("127.0.0.1:")[2].split()[0])
        yield Server(port, None, made.stdout.strip())
    finally:
        process.terminate()
        process.wait(60)


def messages(log: Path) -> list[str]:
    return [json.loads(line)["message"] for line in log.read_text().splitlines()]


def test_a_request_its_job_and_its_trials_are_one_trace(postgres_url, redis_url, tmp_path):
    with trace_collector() as collector:
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("OTEL_")},
            "TUNER_DATABASE_URL": postgres_url,
            "TUNER_BROKER_URL": redis_url,
            "TUNER_RECORDINGS": str(RECORDINGS),
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        log = tmp_path / "api.log"
        with (
            api(environ, log) as server,
            celery_worker(postgres_url, redis_url, tmp_path / "worker.log", **environ),
        ):
            assert server.call("GET", "/healthz").status == 200  # no span, as it comes every 10 s
            answer = server.call("POST", "/v1/jobs", REPLAY, {"traceparent": TRACEPARENT})
            assert answer.status == 202, answer.body
            server.call("GET", f"{answer.headers['location']}/events")  # until the job has ended
            attempt = wait_for(lambda: collector.named("attempt"))[0]
            request = wait_for(lambda: collector.named("POST /v1/jobs"))[0]
            check_trace(collector, request, attempt, answer.json["id"])
            check_failure(collector, postgres_url)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        posted = [line for line in lines if line["message"] == "POST /v1/jobs 202"]
        assert [line["trace_id"] for line in posted] == [TRACE_ID]


def check_trace(collector: Collector, request: Span, attempt: Span, job_id: str) -> None:
    (submit,), (queue,), (run,) = map(collector.named, ("submit", "queue", "run"))
    batches = collector.named("trials")
    spans = [request, submit, queue, attempt, run, *batches]
    assert {span.trace_id for span in spans} == {TRACE_ID}
    assert not [span for span in collector.spans if "healthz" in span.name]
    above = [CALLER, request.span_id, submit.span_id, submit.span_id, attempt.span_id]
    assert [span.parent_id for span in spans[:5]] == above
    assert batches
    assert {span.parent_id for span in batches} == {run.span_id}
    assert [span.kind for span in spans[:5]] == [
        *("server", "producer", "internal", "consumer", "internal")
    ]
    assert {span.service for span in (request, submit)} == {"tuner-api"}
    assert {span.service for span in (queue, attempt, run, *batches)} == {"tuner-worker"}
    assert submit.attributes["tuner.job.id"] == attempt.attributes["tuner.job.id"] == job_id
    assert attempt.attributes["tuner.outcome"] == "done"
    assert attempt.error is None and run.error is None
    assert run.attributes["tuner.problem"] == FP8.spec()
    assert sum(span.attributes["tuner.trials"] for span in batches) > 0
    # Each batch begins when the one before was stored, within the run, within the attempt.
    ordered = sorted(batches, key=lambda span: span.start_ns)
    times = [
        attempt.start_ns,
        run.start_ns,
        *(at for span in ordered for at in (span.start_ns, span.end_ns)),
        run.end_ns,
        attempt.end_ns,
    ]
    assert times == sorted(times)


def check_failure(collector: Collector, database_url: str) -> None:
    """A job that fails is an error in its own trace."""
    other = TRACE_ID[::-1]
    lacking = replay(recording=RECORDINGS / "none.csv.gz")
    with JobStore.open(database_url) as jobs:
        submit(jobs, lacking, trace=TRACEPARENT.replace(TRACE_ID, other))

    def new(name: str) -> list[Span]:
        return [one for one in collector.named(name) if one.trace_id == other]

    (attempt,) = wait_for(lambda: new("attempt"))
    (run,) = new("run")
    assert attempt.attributes["tuner.outcome"] == "failed"
    assert attempt.error and "none.csv.gz" in attempt.error
    assert run.error and "none.csv.gz" in run.error
    assert run.parent_id == attempt.span_id


NOBODY = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}


def test_a_child_whose_collector_is_away_does_its_jobs(sqlite_url):
    with Leases.open(sqlite_url) as leases:
        jobs, workers = JobStore(leases.database), WorkerStore(leases.database)
        registration = Registration(workers, describe(None, None, "test"))
        registration.beat()
        posted = [submit(jobs, replay(seed), trace=TRACEPARENT).job.id for seed in range(2)]
        worker = Worker(
            leases, registration, {**os.environ, **NOBODY, "TUNER_DATABASE_URL": sqlite_url}
        )
        assert worker.drain() == 2
        worker.stop()
        assert {jobs.get(one).state for one in posted} == {JobState.DONE}


@pytest.mark.slow
def test_a_collector_that_is_away_delays_no_job_for_long(postgres_url, redis_url, tmp_path):
    with Leases.open(postgres_url) as leases:
        jobs = JobStore(leases.database)
        posted = [submit(jobs, replay(seed), trace=TRACEPARENT).job.id for seed in range(2)]
        with celery_worker(postgres_url, redis_url, tmp_path / "worker.log", **NOBODY):
            wait_for(lambda: all(jobs.get(one).state is JobState.DONE for one in posted))

"""What workers and beat log: JSON, and a line each for the begin and the end of an outage."""

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from cases import submit
from kombu.exceptions import OperationalError
from servers import Postgres, started_redis
from worker_processes import embedded, replay, wait_for

from tuner.jobs.job import JobState
from tuner.store.jobs import JobStore
from workers.broker import BrokerErrors
from workers.fleet import celery_command
from workers.queue import Announcer
from workers.settings import Settings
from workers.telemetry import Outage

BIN = Path(sys.executable).parent
Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def postgres_alone():
    """A server that the test may stop."""
    with tempfile.TemporaryDirectory(prefix="tuner-pg-") as folder:
        server = Postgres(Path(folder))
        server.start()
        yield server
        server.stop()


@pytest.fixture
def redis_alone():
    with started_redis() as server:
        yield server


@contextmanager
def logging_process(
    log: Path, command: list[str | Path], environ: dict[str, str]
) -> Iterator[Lines]:
    """A process whose output is JSON to the last line, and that output's lines so far."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, env=environ, stdout=out, stderr=out, cwd=Path(__file__).parent
        )

    def lines() -> list[dict[str, Any]]:
        whole, _, _ = log.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    try:
        yield lines
    finally:
        process.terminate()
        try:
            process.wait(90)
        finally:
            process.kill()
    assert lines()
    assert "Traceback" not in log.read_text()


def said(lines: Lines, *words: str) -> list[dict[str, Any]]:
    return [line for line in lines() if all(word in line["message"] for word in words)]


@pytest.mark.slow  # test_workers.py has an outage of Redis, and the test below one of the store
def test_outages_are_two_lines_and_every_line_is_json(postgres_alone, redis_alone, tmp_path):
    url = postgres_alone.url.render_as_string(hide_password=False)
    environ = {**os.environ, "TUNER_DATABASE_URL": url, "TUNER_BROKER_URL": redis_alone.url}
    worker = [BIN / "tuner", "worker", "--device", "H200"]
    beat = [BIN / "celery", "--quiet", "-A", "every_second", "beat", "-l", "INFO"]
    beat += ["--schedule", tmp_path / "beat"]
    with (
        logging_process(tmp_path / "worker.log", worker, environ) as worker_lines,
        logging_process(tmp_path / "beat.log", beat, environ) as beat_lines,
    ):
        wait_for(lambda: said(worker_lines, "ready."))
        wait_for(lambda: said(worker_lines, "Task tuner.nightly"))
        with redis.Redis.from_url(redis_alone.url) as client:
            # A worker that sends events is stuck in sending one when the broker goes.
            assert "cmdstat_publish" not in client.info("commandstats")

        postgres_alone.stop()
        wait_for(lambda: said(worker_lines, "the store does not answer"))
        wait_for(lambda: said(worker_lines, "tonight's round was not done"))
        postgres_alone.start()
        wait_for(lambda: said(worker_lines, "the store answers again after"))

        redis_alone.stop()
        for lines in (worker_lines, beat_lines):
            wait_for(lambda lines=lines: said(lines, "the broker does not answer"))
        redis_alone.start()
        for lines in (worker_lines, beat_lines):
            wait_for(lambda lines=lines: said(lines, "the broker answers again after"))

        with JobStore.open(url) as jobs:
            job = submit(jobs, replay()).job
            Announcer(Settings(url, redis_alone.url)).announce(job)
            wait_for(lambda: jobs.get(job.id).state is JobState.DONE)
        assert wait_for(lambda: said(worker_lines, f"job {job.id}: done"))[0]["job_id"] == job.id
    for lines in (worker_lines, beat_lines):
        assert len(said(lines, "the store", "answer")) <= 2
        assert len(said(lines, "the broker", "answer")) == 2


def test_a_worker_outlives_its_store_and_says_so_twice(postgres_alone, monkeypatch, caplog):
    url = postgres_alone.url.render_as_string(hide_password=False)
    monkeypatch.setenv("TUNER_DATABASE_URL", url)
    monkeypatch.setattr("workers.service.EVERY_S", 0.1)
    caplog.set_level(logging.INFO, "tuner.outages")

    def store_said() -> list[str]:
        said = (record.getMessage() for record in caplog.records)
        return [one.partition(" after ")[0].partition(":")[0] for one in said if "the store" in one]

    with embedded(Settings(url)):
        postgres_alone.stop()
        wait_for(lambda: store_said() == ["the store does not answer"])
        postgres_alone.start()
        wait_for(lambda: store_said()[1:] == ["the store answers again"])
        with JobStore.open(url) as jobs:
            job = submit(jobs, replay()).job
            wait_for(lambda: jobs.get(job.id).state is JobState.DONE)
    assert len(store_said()) == 2


def test_an_outage_has_one_begin_and_one_end(caplog):
    caplog.set_level(logging.INFO)
    now = [100.0]
    outage = Outage("the store", lambda: now[0])
    outage.end()
    for reason in ("refused", "starting up"):
        outage.begin(ConnectionError(reason), job_id="j1")
    now[0] = 112.4
    outage.end()
    outage.end()
    outage.begin(ConnectionError("again"))
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "the store does not answer: refused"),
        ("INFO", "the store answers again after 12 s"),
        ("WARNING", "the store does not answer: again"),
    ]
    assert caplog.records[0].job_id == "j1"


def record_of(logger: str, error: Exception, cause: Exception | None = None) -> logging.LogRecord:
    try:
        raise error from cause
    except Exception:
        return logging.getLogger(logger).makeRecord(
            logger, logging.ERROR, "", 0, "Message Error", (), sys.exc_info()
        )


def test_only_celery_s_errors_about_the_broker_are_taken_for_an_outage():
    outage = Outage("the broker")
    taken = BrokerErrors(outage).filter
    assert taken(record_of("celery.beat", ValueError("a mistake")))
    assert taken(record_of("tuner.worker", ConnectionError("not Celery's")))
    assert taken(logging.makeLogRecord({"name": "celery", "args": {"a": 1}}))
    assert outage._since is None
    assert not taken(record_of("celery.beat", ValueError("due"), OperationalError("refused")))
    assert outage._since is not None


def test_two_fleets_on_one_host_have_other_names():
    def name_of(command: list[str]) -> str:
        return command[command.index("--hostname") + 1]

    code = "import json, workers.fleet as f; print(json.dumps(f.celery_command(0, None, None)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = name_of(json.loads(run.stdout)), name_of(celery_command(0, None, None))
    assert first != second and first.startswith("cpu-") and first.endswith("@%h")

"""What the service's processes read from their environment, and which queues they listen to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.devices.table import devices
from tuner.errors import BadInput
from tuner.jobs.job import JobFilter, Priority, new_job_id
from workers.gpus import LocalGpu, devices_of, gpu_of, known_gpus, worker_environ
from workers.queue import queue_name, queue_names
from workers.service import job_filters
from workers.settings import read_settings

L40S = LocalGpu("GPU-1", "NVIDIA_L40S")


def test_values_come_from_variables_or_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("rediss://:pass@redis:6379/0\n")
    settings = read_settings(
        {
            "TUNER_DATABASE_URL": "sqlite:///here.db",
            "TUNER_BROKER_URL_FILE": str(secret),
            "TUNER_RECORDINGS": str(tmp_path),
            "TUNER_NIGHTLY_HOUR": "23",
        }
    )
    assert settings.database_url == "sqlite:///here.db"
    assert settings.broker_url == "rediss://:pass@redis:6379/0"
    assert (settings.recordings, settings.nightly, settings.nightly_hour) == (tmp_path, None, 23)


def test_the_night_is_asked_for_every_hour_from_its_own_on() -> None:
    code = "import workers.app as w; print(w.app.conf.beat_schedule['nightly']['schedule'].hour)"
    environ = {**os.environ, "TUNER_BROKER_URL": "redis://here", "TUNER_NIGHTLY_HOUR": "21"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert run.stdout == "{21, 22, 23}\n"


def test_nothing_set_is_a_local_store_without_a_broker() -> None:
    settings = read_settings({})
    assert settings.database_url.startswith("sqlite:///")
    assert (settings.broker_url, settings.recordings) == (None, None)


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"TUNER_BROKER_URL": "amqp://guest@host"}, "rediss://"),
        ({"TUNER_BROKER_URL_FILE": "/does/not/exist"}, "TUNER_BROKER_URL_FILE"),
        ({"TUNER_NIGHTLY_HOUR": "24"}, "0 to 23"),
        ({"TUNER_NIGHTLY_HOUR": "late"}, "0 to 23"),
    ],
)
def test_what_cannot_be_is_refused(environ: dict[str, str], reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        read_settings(environ)


@pytest.mark.parametrize("name", ["../secret.csv.gz", "/etc/passwd", "a/../../b"])
def test_a_recording_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    settings = read_settings({"TUNER_RECORDINGS": str(tmp_path)})
    assert settings.recording("good.csv.gz") == (tmp_path / "good.csv.gz").resolve()
    with pytest.raises(BadInput, match="is not in the folder") as refused:
        settings.recording(name)
    assert str(tmp_path) not in str(refused.value)


def test_without_a_folder_a_recording_is_any_path() -> None:
    assert read_settings({}).recording("/data/a.csv.gz") == Path("/data/a.csv.gz")


def test_gpus_that_the_table_lacks_are_left_out() -> None:
    named = [("GPU-1", "NVIDIA L40S"), ("GPU-2", "NVIDIA GeForce GT 710")]
    assert known_gpus(named) == [L40S]


@pytest.mark.parametrize("gpu", [L40S, None])
@pytest.mark.parametrize("names", [["NVIDIA_H200", "NVIDIA_A10"], None])
def test_a_worker_process_is_told_what_it_owns(
    gpu: LocalGpu | None, names: list[str] | None
) -> None:
    environ = worker_environ(gpu, names)
    assert gpu_of(environ) == gpu
    assert devices_of(environ) == names


def test_a_gpu_s_worker_takes_its_own_jobs_first_and_anybody_s_then() -> None:
    assert job_filters(L40S, None) == [JobFilter(True, ("NVIDIA_L40S",)), JobFilter(False, None)]
    assert job_filters(None, ["NVIDIA_H200"]) == [JobFilter(False, ("NVIDIA_H200",))]


def test_queues() -> None:
    assert queue_name("NVIDIA_L40S", Priority.URGENT, needs_gpu=True) == "tune.NVIDIA_L40S.urgent"
    names = queue_names(job_filters(L40S, ["NVIDIA_H200"]))
    assert names == [
        "tune.NVIDIA_L40S.urgent",
        "compile.NVIDIA_H200.urgent",
        "tune.NVIDIA_L40S",
        "compile.NVIDIA_H200",
    ]
    assert len(queue_names(job_filters(None, None))) == 2 * len(devices())


def test_job_ids_sort_by_time_and_differ() -> None:
    ids = [new_job_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert {len(one) for one in ids} == {26}
    assert [one[:10] for one in ids] == sorted(one[:10] for one in ids)

"""What the service's processes read from their environment, and which queues they listen to."""

import logging
import os
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pynvml
import pytest

from api.settings import ApiSettings
from tuner.devices.table import devices
from tuner.errors import BadInput
from tuner.jobs.attempts import AttemptLimits
from tuner.jobs.job import JobFilter, Priority, new_job_id
from tuner.store.connect import place_of
from workers.machine import (
    LocalGpu,
    describe,
    detect_gpus,
    devices_of,
    engines_here,
    gpu_of,
    known_gpus,
    name_of,
    worker_environ,
)
from workers.nightly import due_night
from workers.queue import queue_name, queue_names
from workers.settings import Settings, read_settings

L40S = LocalGpu("GPU-1", "NVIDIA_L40S")


def test_values_come_from_variables_or_files(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("rediss://:pass@redis:6379/0\n")
    settings = read_settings(
        {
            "TUNER_DATABASE_URL": "sqlite:///here.db",
            "TUNER_BROKER_URL_FILE": str(secret),
            "TUNER_RECORDINGS": str(tmp_path),
            "TUNER_NIGHTLY_HOUR": "23",
            "TUNER_METRICS_PORT": "9465",
            "TUNER_METRICS_HOST": "0.0.0.0",  # noqa: S104
            "TUNER_CARRY_OVER": "no",
        }
    )
    assert not settings.carry_over
    assert settings.database_url == "sqlite:///here.db"
    assert settings.broker_url == "rediss://:pass@redis:6379/0"
    assert (settings.recordings, settings.nightly, settings.nightly_hour) == (tmp_path, None, 23)
    assert (settings.metrics_port, settings.metrics_host) == (9465, "0.0.0.0")  # noqa: S104


def test_a_night_is_the_one_whose_hour_has_come_however_late_it_is_done():
    at = lambda *of_day: datetime(2026, 11, *of_day, tzinfo=timezone.utc)  # noqa: E731
    settings = Settings("sqlite://", nightly_hour=23)
    due = [due_night(settings, at(*one)).day for one in ((27, 22, 59), (27, 23), (28, 0, 10))]
    assert due == [26, 27, 27]
    assert due_night(replace(settings, nightly_hour=0), at(28, 0)).day == 28


def test_the_night_is_asked_for_every_hour():
    code = "import workers.app as w; print(w.app.conf.beat_schedule['nightly']['schedule'].hour)"
    environ = {**os.environ, "TUNER_BROKER_URL": "redis://here", "TUNER_NIGHTLY_HOUR": "21"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert run.stdout == f"{set(range(24))}\n"


def test_nothing_set_is_a_local_store_without_a_broker():
    settings = read_settings({})
    assert settings.database_url.startswith("sqlite:///")
    assert (settings.broker_url, settings.recordings) == (None, None)
    assert settings.carry_over
    assert (settings.metrics_port, settings.metrics_host) == (None, "127.0.0.1")


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"TUNER_BROKER_URL": "amqp://guest@host"}, "rediss://"),
        ({"TUNER_CARRY_OVER": "0"}, "TUNER_CARRY_OVER is yes or no, not '0'"),
        ({"TUNER_BROKER_URL_FILE": "/does/not/exist"}, "TUNER_BROKER_URL_FILE"),
        (
            {"TUNER_DATABASE_URL": "sqlite:///a.db", "TUNER_DATABASE_URL_FILE": "/does/not/exist"},
            "TUNER_DATABASE_URL and TUNER_DATABASE_URL_FILE are both set: unset one of them",
        ),
        ({"TUNER_NIGHTLY_HOUR": "24"}, "0 to 23"),
        ({"TUNER_NIGHTLY_HOUR": "late"}, "0 to 23"),
        ({"TUNER_METRICS_PORT": "80"}, "1024 to 65000"),
        ({"TUNER_METRICS_PORT": "65535"}, "1024 to 65000"),
        ({"TUNER_METRICS_PORT": "http"}, "1024 to 65000"),
    ],
)
def test_what_cannot_be_is_refused(environ, reason):
    with pytest.raises(BadInput, match=reason):
        read_settings(environ)


def test_no_password_is_shown():
    url, broker = "postgresql://u:secret1@host/db", "redis://:secret2@host/0"
    settings = Settings(url, broker)
    for shown in (repr(settings), str(ApiSettings(settings)), f"{settings!r}", place_of(url)):
        assert "secret" not in shown
    assert place_of(url) == "postgresql://u:***@host/db"
    assert "secret" not in place_of("postgresql://host/db?user=u&password=secret3")
    assert place_of("sqlite:////data/tuner.db") == "/data/tuner.db"


@pytest.mark.parametrize("name", ["../secret.csv.gz", "/etc/passwd", "a/../../b"])
def test_a_recording_stays_in_its_folder(tmp_path, name):
    settings = read_settings({"TUNER_RECORDINGS": str(tmp_path)})
    assert settings.recording("good.csv.gz") == (tmp_path / "good.csv.gz").resolve()
    with pytest.raises(BadInput, match="is not in the folder") as refused:
        settings.recording(name)
    assert str(tmp_path) not in str(refused.value)


def test_without_a_folder_a_recording_is_any_path():
    assert read_settings({}).recording("/data/a.csv.gz") == Path("/data/a.csv.gz")


def test_gpus_that_the_table_lacks_are_left_out():
    named = [("GPU-1", "NVIDIA L40S"), ("GPU-2", "NVIDIA GeForce GT 710")]
    assert known_gpus(named) == [L40S]


class Driver:
    """The driver's library, below pynvml: its cards by name, an error instead of a lost one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *cards: str | Exception) -> None:
        self._cards = cards
        monkeypatch.setattr("pynvml.nvmlInit", self._init)
        monkeypatch.setattr("pynvml.nvmlShutdown", lambda: None)
        monkeypatch.setattr("pynvml.nvmlDeviceGetCount", lambda: len(cards))
        monkeypatch.setattr("pynvml.nvmlDeviceGetHandleByIndex", self._card)
        monkeypatch.setattr("pynvml.nvmlDeviceGetName", lambda card: card[1].encode())
        monkeypatch.setattr("pynvml.nvmlDeviceGetUUID", lambda card: f"GPU-{card[0]}")
        self.missing: Exception | None = None

    def _init(self) -> None:
        if self.missing is not None:
            raise self.missing

    def _card(self, index: int) -> tuple[int, str]:
        card = self._cards[index]
        if isinstance(card, Exception):
            raise card
        return index, card


@pytest.fixture
def machine(tmp_path):
    """What the kernel shows of a machine with a network card of NVIDIA, but no GPU."""
    for number, (vendor, kind) in enumerate([("0x10de", "0x020000"), ("0x8086", "0x030000")]):
        folder = tmp_path / "sys/bus/pci/devices" / f"0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
    return tmp_path


def show_a_gpu(machine: Path, sign: str) -> None:
    if sign == "sys":
        folder = machine / "sys/bus/pci/devices/0000:09:00.0"
        folder.mkdir()
        (folder / "vendor").write_text("0x10de\n")
        (folder / "class").write_text("0x030200\n")
    else:
        file = machine / sign
        file.parent.mkdir(parents=True)
        file.touch()


def test_a_card_that_is_lost_hides_no_other(monkeypatch):
    lost = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    Driver(monkeypatch, lost, "NVIDIA L40S")
    assert detect_gpus() == [L40S]


@pytest.mark.parametrize(
    ("visible", "numbers"),
    [("2,0", [0, 2]), ("GPU-1", [1]), ("3", []), ("", []), ("1,-1,0", [1]), ("MIG-1", [])],
)
def test_workers_are_for_the_gpus_that_cuda_visible_devices_has(
    monkeypatch, caplog, machine, visible, numbers
):
    Driver(monkeypatch, *["NVIDIA L40S"] * 3)
    everything = detect_gpus()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with caplog.at_level(logging.INFO, "tuner.gpus"):
        assert detect_gpus(machine) == [everything[number] for number in numbers]
    assert ("CUDA_VISIBLE_DEVICES names no whole GPU" in caplog.text) == (not numbers)


@pytest.mark.parametrize("sign", ["sys", "proc/driver/nvidia/version", "dev/nvidia0"])
@pytest.mark.parametrize("reason", ["no library", "no driver", "no module", "no card"])
def test_a_gpu_that_cannot_be_used_is_warned_of(monkeypatch, caplog, machine, sign, reason):
    driver = Driver(monkeypatch)
    nvidia_smi = "see that `nvidia-smi` works here; a container needs the GPUs (`--gpus all`)"
    if reason == "no module":
        monkeypatch.setitem(sys.modules, "pynvml", None)
        nvidia_smi = "pip install nvidia-ml-py"
    elif reason != "no card":
        kinds = {"no library": "LIBRARY_NOT_FOUND", "no driver": "DRIVER_NOT_LOADED"}
        driver.missing = pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{kinds[reason]}"))
    with caplog.at_level(logging.INFO, "tuner.gpus"):
        assert detect_gpus(machine) == []
        show_a_gpu(machine, sign)
        assert detect_gpus(machine) == []
    without, beside = caplog.records
    assert (without.levelname, beside.levelname) == ("INFO", "WARNING")
    assert without.getMessage().startswith("no GPU: ")
    said = beside.getMessage()
    assert said.startswith("this machine has an NVIDIA GPU, but it cannot be used: ")
    assert said.endswith(nvidia_smi)


@pytest.mark.parametrize("gpu", [L40S, None])
@pytest.mark.parametrize("names", [["NVIDIA_H200", "NVIDIA_A10"], None])
def test_a_worker_process_is_told_what_it_owns(gpu, names):
    environ = worker_environ(gpu, names, "cpu-3")
    assert gpu_of(environ) == gpu
    assert name_of(environ) == "cpu-3"
    assert devices_of(environ) == names


def test_a_gpu_s_worker_takes_its_own_jobs_first_and_anybody_s_then():
    here = engines_here()  # with and without a version; both engines, where both are here
    engines = (*here, *dict.fromkeys(one.partition("==")[0] for one in here))
    assert describe(L40S, None, "w").filters() == [
        JobFilter(True, ("NVIDIA_L40S",), engines),
        JobFilter(False, None, engines),
    ]
    assert describe(None, ["NVIDIA_H200"], "w").filters() == [
        JobFilter(False, ("NVIDIA_H200",), engines)
    ]


def test_limits_of_jobs_come_from_the_environment():
    given = {"TUNER_START_LIMIT_S": "30", "TUNER_ATTEMPT_LIMIT_S": "3600"}
    limits = read_settings({**given, "TUNER_DATABASE_URL": "sqlite://"}).limits
    assert limits == AttemptLimits(start_s=30.0, attempt_s=3600.0)
    for wrong in ("0", "-1", "1.5", "soon", "99999999"):
        with pytest.raises(BadInput, match="TUNER_NEXT_TRIAL_LIMIT_S is a whole number of seconds"):
            read_settings({"TUNER_NEXT_TRIAL_LIMIT_S": wrong})


def test_queues():
    assert queue_name("NVIDIA_L40S", Priority.URGENT, needs_gpu=True) == "tune.NVIDIA_L40S.urgent"
    names = queue_names(L40S, ["NVIDIA_H200"])
    assert names == [
        "tune.NVIDIA_L40S.urgent",
        "compile.NVIDIA_H200.urgent",
        "tune.NVIDIA_L40S",
        "compile.NVIDIA_H200",
    ]
    assert len(queue_names(None, None)) == 2 * len(devices())


def test_job_ids_sort_by_time_and_differ():
    ids = [new_job_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert {len(one) for one in ids} == {26}
    assert [one[:10] for one in ids] == sorted(one[:10] for one in ids)

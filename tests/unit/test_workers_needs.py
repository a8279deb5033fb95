"""Which worker can do a job, which version of an engine it is for, and why nobody can do it."""

import socket
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from tuner.jobs.job import JobFilter
from tuner.jobs.workers import JobRequirements, WorkerInfo, WorkerState, WorkerStatus, read_worker

NOW = datetime(2026, 11, 1, tzinfo=timezone.utc)
INFO = WorkerInfo(
    id="gpu-0@a:1:ff",
    name="gpu-0@a",
    host="a",
    gpu="GPU-1",
    device="NVIDIA_L40S",
    devices=None,
    engines=("sglang==0.5.16", "sglang==0.5.12"),
    packages={"torch": "2.9.0"},
)
MEASURE = JobRequirements("NVIDIA_L40S", needs_gpu=True, engine="sglang==0.5.16")


def status(info: WorkerInfo = INFO, **changes: object) -> WorkerStatus:
    made = WorkerStatus(info, WorkerState.ACTIVE, "", False, NOW, NOW, True, None)
    return replace(made, **changes)


def having(*engines: str, device: str = "NVIDIA_L40S") -> WorkerStatus:
    return status(replace(INFO, engines=engines, device=device))


def away(host: str, engine: str, hours: int = 1) -> WorkerStatus:
    info = replace(INFO, name=f"gpu-0@{host}", host=host, engines=(engine,))
    return status(info, alive=False, seen_at=NOW - timedelta(hours=hours))


def test_a_worker_asks_for_what_it_can_do():
    engines = (*INFO.engines, "sglang")
    assert INFO.filters() == [
        JobFilter(True, ("NVIDIA_L40S",), engines),
        JobFilter(False, None, engines),
    ]
    assert INFO.preferred() == {"sglang": "sglang==0.5.16"}


@pytest.mark.parametrize(
    ("need", "met"),
    [
        (MEASURE, True),
        (replace(MEASURE, engine="sglang"), True),
        (replace(MEASURE, engine="sglang==0.5.12"), True),
        (replace(MEASURE, engine="sglang==0.5.1"), False),
        (replace(MEASURE, device="NVIDIA_H200"), False),
        (JobRequirements("NVIDIA_H200", False, "sglang"), True),
        (JobRequirements("NVIDIA_H200", False, "vllm"), False),
    ],
    ids=str,
)
def test_needs_are_met_by_device_engine_and_version(need, met):
    assert need.met_by(INFO) is met
    assert (need.unmet([status()], NOW) == "") is met


def test_predictions_for_named_devices_only():
    info = replace(INFO, gpu="", device="", devices=("NVIDIA_H200",))
    assert JobRequirements("NVIDIA_H200", False, "sglang").met_by(info)
    assert not JobRequirements("NVIDIA_L40S", False, "sglang").met_by(info)
    assert not MEASURE.met_by(info)


@pytest.mark.parametrize(
    ("here", "workers", "pinned"),
    [
        ("0.5.16", [], "sglang==0.5.16"),
        (None, [], "sglang"),
        ("0.5.16", [having("sglang==0.5.12", "sglang==0.5.16")], "sglang==0.5.16"),
        ("0.5.16", [having("sglang==0.5.12")], "sglang==0.5.12"),
        (None, [having("sglang==0.5.9"), having("sglang==0.5.12")], "sglang==0.5.12"),
        (None, [having("sglang==0.5.12", "sglang==0.5.23")], "sglang==0.5.12"),
        ("0.5.16", [having("sglang==0.5.12", device="NVIDIA_H20")], "sglang==0.5.16"),
        ("0.5.16", [status(having("sglang==0.5.12").info, alive=False)], "sglang==0.5.16"),
        ("0.5.16", [having()], "sglang==0.5.16"),
    ],
)
def test_a_job_is_for_a_version_that_a_living_worker_has(here, workers, pinned):
    assert replace(MEASURE, engine="sglang").pinned(workers, here).engine == pinned
    named = replace(MEASURE, engine="sglang==0.4.4")
    assert named.pinned(workers, here) == named


@pytest.mark.parametrize(
    ("workers", "newest"),
    [
        ([], "sglang==0.5.16"),
        ([having("sglang==0.5.12"), having("sglang==0.5.14")], "sglang==0.5.14"),
        ([having("sglang==0.5.12"), away("b", "sglang==0.5.23")], "sglang==0.5.12"),
        ([away("b", "sglang==0.5.12"), away("c", "sglang==0.5.9")], "sglang==0.5.12"),
        ([away("b", "sglang==0.5.23", 9), away("b", "sglang==0.5.12", 2)], "sglang==0.5.12"),
        ([away(socket.gethostname(), "sglang==0.5.12")], "sglang==0.5.16"),
        ([away("b", "vllm==0.20.0"), having(device="NVIDIA_H20")], "sglang==0.5.16"),
    ],
)
def test_repeated_work_is_for_the_workers_that_take_it_or_are_expected_back(workers, newest):
    """The last start of a worker tells its engines; 0.5.16 is on this machine."""
    assert replace(MEASURE, engine="sglang").newest(workers, "0.5.16").engine == newest
    assert MEASURE.newest(workers, "0.5.1") == MEASURE


@pytest.mark.parametrize(
    ("workers", "reason"),
    [
        (
            [],
            "no worker with NVIDIA_L40S and sglang 0.5.16 was ever seen: start `tuner worker` on a "
            "host with both",
        ),
        (
            [status(alive=False, seen_at=NOW - timedelta(days=3, hours=2))],
            "no worker with NVIDIA_L40S and sglang 0.5.16 is alive; last seen 3 days ago",
        ),
        (
            [status(alive=False, seen_at=NOW - timedelta(seconds=70))],
            "no worker with NVIDIA_L40S and sglang 0.5.16 is alive; last seen 1 minute ago",
        ),
        (
            [status(state=WorkerState.SET_ASIDE, reason="no torch")],
            "no worker with NVIDIA_L40S and sglang 0.5.16 takes jobs: gpu-0@a is set aside: "
            "no torch",
        ),
        (
            [status(drain=True)],
            "no worker with NVIDIA_L40S and sglang 0.5.16 takes jobs: gpu-0@a is drained",
        ),
        ([status(drain=True), status()], ""),
    ],
)
def test_a_job_that_nobody_can_do_says_why(workers, reason):
    assert MEASURE.unmet(workers, NOW) == reason


@pytest.mark.parametrize(
    ("changes", "doing"),
    [
        ({}, "idle"),
        ({"job_id": "j"}, "busy"),
        ({"drain": True, "job_id": "j"}, "draining"),
        ({"drain": True}, "drained"),
        ({"state": WorkerState.SET_ASIDE}, "set aside"),
        ({"state": WorkerState.STOPPED, "alive": False}, "stopped"),
        ({"alive": False, "drain": True}, "lost"),
    ],
)
def test_a_worker_s_state_is_one_word_and_survives_json(changes, doing):
    one = status(**changes)
    assert one.doing == doing
    again = read_worker(one.as_json())
    assert (again.doing, again.info, again.takes_jobs) == (doing, one.info, one.takes_jobs)

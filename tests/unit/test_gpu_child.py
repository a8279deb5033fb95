"""What a GPU's child tells its session, without a GPU."""

import os
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tuner.families.fused_moe.problem import Gemm
from tuner.measure import gpu_child, gpu_lock
from tuner.measure.gpu_child import _work
from tuner.measure.gpu_lock import lock_gpu
from tuner.measure.messages import measurement_fields, point_fields
from tuner.problems.points import Point
from tuner.problems.results import Measurement, Status

POINT, OTHER = Point(4, Gemm.UP), Point(4, Gemm.DOWN)
CARD = "ffc79498-8ff3-c2dc-3b0d-fafd804516ae"


@pytest.fixture(autouse=True)
def card(tmp_path, monkeypatch):
    """A GPU that torch shows, and a folder of locks for this test."""
    monkeypatch.setattr(gpu_lock, "FOLDER", tmp_path)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=CARD))


class Session:
    """Answers with the time that a configuration names, and keeps what it was told."""

    def __init__(self) -> None:
        self.ready: dict[str, Any] = {}
        self.told: list[float | None] = []

    def measure(self, request: dict[str, Any]) -> dict[str, Any]:
        self.told.append(request["best_us"])
        us = request["config"]["US"]
        status = Status.OK if us else Status.WRONG_RESULT
        return measurement_fields(Measurement(status, us, us))

    def race(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"measurements": []}


def test_a_session_is_told_the_best_time_of_the_point_so_far():
    session, best_us = Session(), dict[Point, float]()
    for point, us in (
        (POINT, 20),
        (POINT, 30),
        (OTHER, 90),
        (POINT, None),
        (POINT, 10),
        (OTHER, 1),
    ):
        request = {"op": "measure", **point_fields(point), "config": {"US": us}}
        assert _work(session, request, best_us)["median_us"] == us
    assert session.told == [None, 20, None, 20, 20, 90]
    assert best_us == {POINT: 10, OTHER: 1}


def test_a_race_has_no_best_time():
    session = Session()
    assert _work(session, {"op": "race", **point_fields(POINT)}, {}) == {"measurements": []}


def test_a_second_problem_does_not_know_the_first_one_s_best_time(monkeypatch):
    session = Session()
    setup = {"op": "setup", "problem": "block_gemm:N=64,K=64,dtype=fp8_w8a8,block=32x32"}
    request = {"op": "measure", **point_fields(POINT), "config": {"US": 20}}
    requests = iter([setup, request, request, setup, request])
    pipes = SimpleNamespace(receive=lambda: next(requests), send=lambda answer: None)
    monkeypatch.setattr(gpu_child, "ParentPipes", lambda: pipes)
    monkeypatch.setattr(gpu_child, "_open_session", lambda request: session)
    monkeypatch.setattr(gpu_child, "_gpu_facts", dict)
    with pytest.raises(StopIteration):  # the child never ends by itself
        gpu_child.main()
    assert session.told == [None, 20, None]


def test_a_gpu_on_which_another_process_measures_is_left_alone(monkeypatch):
    answers: list[dict[str, Any]] = []
    pipes = SimpleNamespace(receive=lambda: {"op": "setup"}, send=answers.append)
    monkeypatch.setattr(gpu_child, "ParentPipes", lambda: pipes)
    monkeypatch.setattr(gpu_child, "_open_session", pytest.fail)
    monkeypatch.setattr(gpu_child.os, "_exit", sys.exit)
    locked = lock_gpu(f"GPU-{CARD}")
    with pytest.raises(SystemExit):
        gpu_child.main()
    os.close(locked)
    said = answers.pop()
    assert said["status"] == "in_use"
    assert re.fullmatch(
        rf"another process( \(pid {os.getpid()}\))? measures on .*{CARD}", said["detail"]
    )

"""Which candidates a fused-MoE session compares with the reference, without a GPU."""

from types import SimpleNamespace
from typing import Any

import pytest

from tuner.families.fused_moe import gpu
from tuner.families.fused_moe.problem import Gemm
from tuner.measure.messages import point_fields
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, Point
from tuner.problems.results import Measurement, Status

POINT = Point(4, Gemm.UP)
FAST, SLOW, WRONG = (Config({"BLOCK_SIZE_M": 16, "US": us}) for us in (100, 200, 99))


@pytest.fixture
def compared(monkeypatch):
    """What was compared. A kernel is its configuration here, and takes what that says."""
    seen: list[Config] = []

    def check(inputs: object, kernel: Config, launches: list[object]) -> float:
        assert len(launches) == 10
        seen.append(kernel)
        return 1.0 if kernel == WRONG else 0.0

    def timed(kernel: Config, best_us: float | None, before: object) -> Measurement:
        return Measurement(Status.OK, kernel["US"], kernel["US"], 1)

    monkeypatch.setattr(gpu, "check", check)
    monkeypatch.setattr(gpu, "capture", lambda kernel, launches, least: kernel)
    monkeypatch.setattr(gpu, "time_graph", timed)
    monkeypatch.setattr(
        gpu, "race", lambda kernels, rounds, before: [[k["US"]] * rounds for k in kernels]
    )
    return seen


def session(monkeypatch: pytest.MonkeyPatch, *, thorough: bool = False) -> gpu.MoeOnGpu:
    opened = object.__new__(gpu.MoeOnGpu)
    inputs = SimpleNamespace(
        launches=lambda kernel, config: [[]] * 10,
        read_bytes=1e9,
        cold=SimpleNamespace(push_out=lambda: None),
    )
    opened._layer = SimpleNamespace(
        inputs=lambda point: inputs, problem=SimpleNamespace(dtype=Dtype.BFLOAT16)
    )
    opened._thorough, opened._copy_rate, opened._errors = thorough, 1e6, {}
    monkeypatch.setattr(opened, "_kernel", lambda point, config: config)
    return opened


def request(config: Config, best_us: float | None) -> dict[str, Any]:
    return {**point_fields(POINT), "config": dict(config), "best_us": best_us}


def test_what_is_surely_slower_is_not_compared(monkeypatch, compared):
    opened = session(monkeypatch)
    assert "worst error" in opened.measure(request(FAST, None))["detail"]
    assert "not compared" in opened.measure(request(SLOW, 100.0))["detail"]
    assert opened.measure(request(WRONG, 100.0))["status"] == "wrong_result"
    assert compared == [FAST, WRONG]


def test_an_exhaustive_run_compares_all(monkeypatch, compared):
    opened = session(monkeypatch, thorough=True)
    assert "worst error" in opened.measure(request(SLOW, 100.0))["detail"]
    assert compared == [SLOW]


def test_a_race_compares_what_was_left_and_nothing_twice(monkeypatch, compared):
    opened = session(monkeypatch)
    opened.measure(request(FAST, None))
    configs = [dict(config) for config in (FAST, SLOW, WRONG)]
    raced = opened.race({**point_fields(POINT), "configs": configs, "rounds": 3})
    assert [one["status"] for one in raced["measurements"]] == ["ok", "ok", "wrong_result"]
    assert [one["median_us"] for one in raced["measurements"]] == [100, 200, None]
    assert compared == [FAST, SLOW, WRONG]

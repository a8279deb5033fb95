"""What a run gained, as its table and its closing line show it, and whose entries they are."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tuner.export.selection import leave_out_predicted, with_shipped
from tuner.families.fused_moe.problem import Gemm
from tuner.problems.points import Config, Point
from tuner.problems.records import Winner
from tuner.problems.registry import parse_problem
from tuner.problems.results import Compiled, Entry, Environment, Incumbent, Status
from tuner.tuning.gains import closing_line, gains

PROBLEM = parse_problem("fused_moe:E=8,N=64,K=128,top_k=2,dtype=bfloat16")
HERE = Environment("NVIDIA_H20", "sglang", "0.5.16", "3.6.0", "k")
OWN, OTHER = Config({"X": 1}), Config({"X": 2})


def entry(
    size: int,
    gemm: Gemm,
    engine_us: float | None,
    us: float,
    *,
    name: str = "default",
    config: Config = OTHER,
    status: Status = Status.OK,
) -> Entry:
    ran = status if engine_us else Status.OUT_OF_RESOURCES
    incumbents = {name: Incumbent(OWN, ran, engine_us)}
    return Entry(Point(size, gemm), config, status, us, Compiled(Status.OK), incumbents, "why")


def test_both_gemms_of_a_size_count_together() -> None:
    entries = [
        entry(1, Gemm.UP, 10.0, 5.0),
        entry(1, Gemm.DOWN, 10.0, 15.0),
        entry(8, Gemm.UP, 60.0, 20.0),
        entry(8, Gemm.DOWN, 20.0, 20.0),
    ]
    assert [(one.size, one.ratio) for one in gains(entries)] == [("M=1", 1.0), ("M=8", 2.0)]
    assert closing_line(entries) == (
        "1.41x as fast (geometric mean of 2 sizes), best 2.00x at M=8, worst 1.00x at M=1 "
        "(measured, against the engine's default configurations)"
    )


def test_a_size_that_the_engine_cannot_run_has_no_gain() -> None:
    entries = [entry(1, Gemm.UP, None, 5.0), entry(8, Gemm.UP, 30.0, 20.0)]
    assert [one.size for one in gains(entries)] == ["M=8"]
    assert closing_line(entries).startswith("1.50x as fast at M=8 (measured, ")
    assert closing_line(entries[:1]) == ""


def test_the_line_says_where_times_are_from() -> None:
    entries = [
        entry(1, Gemm.UP, 10.0, 10.0, status=Status.PREDICTED, name="shipped", config=OWN),
        entry(8, Gemm.UP, 30.0, 20.0),
    ]
    end = "(measured and predicted, against the engine's default and shipped configurations)"
    assert closing_line(entries).endswith(end)


def winner(one: Entry) -> Winner:
    return Winner(PROBLEM, HERE, one, 1, datetime(2026, 1, 1, tzinfo=UTC))


def kept(size: int, gemm: Gemm, config: Config = OWN) -> Entry:
    return entry(size, gemm, 9.0, 9.0, name="shipped", config=config, status=Status.PREDICTED)


def test_an_entry_of_the_engines_own_file_is_not_called_predicted() -> None:
    found = with_shipped([winner(kept(1, gemm)) for gemm in Gemm])
    assert {one.entry.status for one in found} == {Status.INCUMBENT}
    assert {one.entry.median_us for one in found} == {None}
    assert leave_out_predicted(found) == (found, [])


def test_a_pair_is_the_engines_only_as_a_whole() -> None:
    pair = [winner(kept(1, Gemm.UP)), winner(kept(1, Gemm.DOWN, OTHER))]
    assert with_shipped(pair) == pair


@pytest.mark.parametrize("status", [Status.OK, Status.INCUMBENT])
def test_a_measured_entry_stays_measured(status: Status) -> None:
    one = winner(entry(1, Gemm.UP, 9.0, 9.0, name="shipped", config=OWN, status=status))
    assert with_shipped([one]) == [one]

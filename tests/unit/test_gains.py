"""What a run gained, as its table and its closing line show it, and whose entries they are."""

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from tuner.devices.table import find_device
from tuner.engines.dispatch import what_runs
from tuner.export.selection import leave_out_predicted, with_shipped
from tuner.families.dense_gemm.problem import parse_dense_gemm
from tuner.families.fused_moe.problem import Gemm
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.registry import parse_problem
from tuner.problems.results import (
    Compiled,
    Entry,
    Environment,
    Incumbent,
    Measurement,
    Status,
    Trial,
    Winner,
)
from tuner.tuning.gains import closing_line, gains, with_backends

PROBLEM = parse_problem("fused_moe:E=8,N=64,K=128,top_k=2,dtype=bfloat16")
GEMM = parse_dense_gemm("block_gemm:N=7168,K=2048,dtype=fp8_w8a8,block=128x128")
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
    point, compiled = Point(size, gemm), Compiled(Status.OK)
    return Entry(point, config, status, us, compiled, incumbents, "why", without_us=name)


def beside(one: Entry, backend: str, us: float | None) -> Entry:
    """The entry where servers run another backend, which was measured or was not."""
    there = {backend: Incumbent(Config({}), Status.OK, us, backend=backend)} if us else {}
    return replace(one, without_us=backend, incumbents={**one.incumbents, **there})


def test_a_gain_is_over_the_backend_that_servers_run():
    entries = [beside(entry(8, gemm, 30.0, 20.0), "deep_gemm", 10.0) for gemm in Gemm]
    assert [one.ratio for one in gains(entries)] == [0.5]
    assert closing_line(entries) == (
        "0.50x as fast at M=8 (measured, over the server's own choice: DeepGEMM)"
    )


@pytest.mark.parametrize(
    ("backend", "said"),
    [("fa3", "servers run FlashAttention 3, which"), ("", "the server's own choice")],
)
def test_a_gain_over_tritons_own_is_called_so(backend, said):
    entries = [beside(entry(8, gemm, 30.0, 20.0), backend, None) for gemm in Gemm]
    assert closing_line(entries) == (
        "1.50x as fast at M=8 (measured, over Triton's default configurations; "
        f"{said} was not measured)"
    )


@pytest.mark.parametrize(
    ("us", "each", "whole"),
    [
        (30.0, [30.0, 0.0], (30.0, 40.0)),  # one kernel for both gemms
        (None, [None, None], (60.0, 40.0)),  # it failed, and leaves no part a time
    ],
)
def test_a_backend_is_timed_with_both_gemms_at_once(us, each, whole):
    some = [entry(8, gemm, 30.0, 20.0) for gemm in Gemm]
    told = with_backends(some, [trial(some[0].point, "deep_gemm", us)], None)
    assert [one.incumbents["deep_gemm"].median_us for one in told] == each
    told = [replace(one, without_us="deep_gemm") for one in told]
    assert [(one.engine_us, one.tuned_us) for one in gains(told)] == [whole]
    unmeasured = "servers run DeepGEMM, which was not measured" in closing_line(told)
    assert unmeasured is (us is None)


def trial(point: Point, backend: str, us: float | None) -> Trial:
    status = Status.CRASHED if us is None else Status.OK
    measured = Measurement(status, us, us, 3)
    return Trial(Candidate(point, Config({}), backend), Compiled(Status.OK), measured)


@pytest.mark.parametrize(
    ("device", "installed", "name"),
    [
        ("L40S", None, "default"),
        ("H200", None, ""),
        ("H200", {"deep_gemm"}, "deep_gemm"),
        ("H200", set(), "default"),
    ],
)
def test_entries_are_told_what_runs_without_us(device, installed, name):
    runs = what_runs("sglang", "0.5.16", GEMM, find_device(device))
    one = replace(entry(8, Gemm.UP, 30.0, 20.0), without_us="")
    (told,) = with_backends([one], [], runs, installed)
    assert told.without_us == name
    untuned = replace(one, incumbents={})
    assert with_backends([untuned], [], runs, installed) == [untuned]


def test_the_engines_own_file_runs_where_it_has_one():
    runs = what_runs("sglang", "0.5.16", GEMM, find_device("L40S"))
    one = entry(8, Gemm.UP, 30.0, 20.0, name="shipped")
    assert with_backends([one], [], runs)[0].without_us == "shipped"
    assert with_backends([one], [], None)[0].without_us == ""


def test_both_gemms_of_a_size_count_together():
    entries = [
        entry(1, Gemm.UP, 10.0, 5.0),
        entry(1, Gemm.DOWN, 10.0, 15.0),
        entry(8, Gemm.UP, 60.0, 20.0),
        entry(8, Gemm.DOWN, 20.0, 20.0),
    ]
    assert [(one.size, one.ratio) for one in gains(entries)] == [("M=1", 1.0), ("M=8", 2.0)]
    assert closing_line(entries) == (
        "1.41x as fast (geometric mean of 2 sizes), best 2.00x at M=8, worst 1.00x at M=1 "
        "(measured, over the server's own choice: Triton's default configurations)"
    )


def test_a_size_that_the_engine_cannot_run_has_no_gain():
    entries = [entry(1, Gemm.UP, None, 5.0), entry(8, Gemm.UP, 30.0, 20.0)]
    assert [one.size for one in gains(entries)] == ["M=8"]
    assert closing_line(entries).startswith("1.50x as fast at M=8 (measured, ")
    assert closing_line(entries[:1]) == ""


def test_the_line_says_where_times_are_from():
    entries = [
        entry(1, Gemm.UP, 10.0, 10.0, status=Status.PREDICTED, name="shipped", config=OWN),
        entry(8, Gemm.UP, 30.0, 20.0),
    ]
    assert closing_line(entries).endswith(
        "(measured and predicted, over the server's own choice: "
        "Triton's default and shipped configurations)"
    )


def winner(one: Entry) -> Winner:
    return Winner(PROBLEM, HERE, one, 1, datetime(2026, 1, 1, tzinfo=timezone.utc))


def kept(size: int, gemm: Gemm, config: Config = OWN) -> Entry:
    return entry(size, gemm, 9.0, 9.0, name="shipped", config=config, status=Status.PREDICTED)


def test_an_entry_of_the_engines_own_file_is_not_called_predicted():
    found = with_shipped([winner(kept(1, gemm)) for gemm in Gemm])
    assert {one.entry.status for one in found} == {Status.INCUMBENT}
    assert {one.entry.median_us for one in found} == {None}
    assert leave_out_predicted(found) == (found, [])


def test_a_pair_is_the_engines_only_as_a_whole():
    pair = [winner(kept(1, Gemm.UP)), winner(kept(1, Gemm.DOWN, OTHER))]
    assert with_shipped(pair) == pair


@pytest.mark.parametrize("status", [Status.OK, Status.INCUMBENT])
def test_a_measured_entry_stays_measured(status):
    one = winner(entry(1, Gemm.UP, 9.0, 9.0, name="shipped", config=OWN, status=status))
    assert with_shipped([one]) == [one]


def test_a_run_that_changes_nothing_says_so_and_names_no_best_size():
    status = Status.PREDICTED
    kept = [entry(size, Gemm.UP, 10.0, 10.0, config=OWN, status=status) for size in (1, 64)]
    untuned = replace(kept[0], status=Status.INCUMBENT, median_us=None, incumbents={})
    origin = "(predicted, over the server's own choice: Triton's default configurations)"
    told = f"nothing changes: the engine's own configurations stay at 2 sizes {origin}"
    assert closing_line([*kept, replace(untuned, point=Point(8, Gemm.UP))]) == told
    assert closing_line(kept[:1]) == told.replace("2 sizes", "M=1")
    changed = entry(8, Gemm.UP, 10.0, 10.0)
    assert closing_line([*kept, changed]).startswith("1.00x as fast (geometric mean of 3 sizes)")
    slower = beside(kept[0], "deep_gemm", 5.0)  # Triton's own stays, and the server runs another
    assert closing_line([slower]).startswith("0.50x as fast at M=1")

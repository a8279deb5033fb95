"""What jobs cost, and what they will probably cost."""

import time
from dataclasses import replace

import pytest
from cases import FP8, INT8, new_request, submit
from databases import both_databases

from tuner.families.fused_moe.problem import Gemm
from tuner.jobs.job import Cost, Job, JobFilter
from tuner.problems.points import Point, Problem
from tuner.problems.results import Environment, MeasureKind, RunKey, Totals
from tuner.store.database import Database
from tuner.store.results import ResultStore
from tuner.store.workers import Estimates
from tuner.tuning.gains import Meter, cost_line, work_line
from tuner.tuning.request import START_S, Effort, estimate_line, typical_gpu_s

ENVIRONMENT = Environment("NVIDIA_H200", "sglang", "0.5.16", "3.6.0", "kernels", driver="550")
POINTS = tuple(Point(size, gemm) for size in (1, 64) for gemm in Gemm)


def key(problem: Problem = FP8, **changes: object) -> RunKey:
    made = RunKey(problem, ENVIRONMENT, MeasureKind.GPU, "standard", 0, POINTS, "space")
    return replace(made, **changes)


def finish(store: Database, gpu_s: float | None, **changes: object) -> None:
    extra = {} if gpu_s is None else {"gpu_s": gpu_s, "gpu_idle_s": 1.0, "cpu_s": 50.0}
    ResultStore(store).finish_run(
        ResultStore(store).begin_run(key(**changes)), [], Totals(wall_s=100.0, extra=extra)
    )


def estimate(
    store: Database, points: int = 4, effort: Effort = Effort.STANDARD, problem: Problem = FP8
) -> float | None:
    return Estimates(store).gpu_s(problem, "NVIDIA_H200", effort, points)


@both_databases
def test_an_estimate_follows_the_runs_of_the_same_kind(store):
    for seed, gpu_s in enumerate((8.0, 12.0, 40.0)):
        finish(store, gpu_s, seed=seed, problem=INT8)
    assert estimate(store) == pytest.approx(12.0)
    assert estimate(store, points=8) == pytest.approx(START_S + 2 * (12.0 - START_S))
    finish(store, 1.0, seed=10, measure=MeasureKind.PREDICT)
    finish(store, 1.0, seed=11, environment=replace(ENVIRONMENT, device="NVIDIA_L40S"))
    ResultStore(store).begin_run(key(seed=12))
    finish(store, None, seed=13)  # its worker did not say what it took
    assert estimate(store) == pytest.approx(12.0)


def test_without_a_run_the_number_of_tries_says_it(store):
    # The R1 job, 36 points with 40 tries each, took 27.4 s.
    assert estimate(store, points=36) == pytest.approx(27.4, abs=0.1)
    assert estimate(store, 36, Effort.QUICK) == pytest.approx(16.4, abs=0.1)
    # Few points take little less: it begins, and other backends are timed too.
    assert estimate(store, 3, Effort.QUICK) == pytest.approx(9.6, abs=0.1)
    assert estimate(store, 36, Effort.EXHAUSTIVE) is None


def test_a_done_job_says_what_it_cost(store, jobs, leases):
    posted = submit(jobs, new_request(FP8, "H200", "sglang==0.5.16")).job
    assert posted.cost is None
    assert Estimates(store).of(posted) is not None
    lease = leases.claim([JobFilter(needs_gpu=True)], "worker")
    own = leases.store(lease)
    extra = {"gpu_s": 41.34, "gpu_idle_s": 16.0, "cpu_s": 150.0}
    own.finish_run(own.begin_run(key()), [], Totals(compile_s=140.0, extra=extra))
    done: Job = jobs.get(posted.id)
    assert done.cost == Cost(41.34, 16.0, 150.0)
    assert done.as_json()["cost"] == {"gpu_s": 41.3, "gpu_idle_s": 16.0, "cpu_s": 150.0}
    assert Estimates(store).of(done) is None


def test_a_prediction_costs_no_gpu():
    assert Cost.of(Totals(compile_s=5.0, measure_s=2.0)) == Cost(0.0, 0.0, 7.0)


def test_idle_is_what_a_run_did_not_use_of_its_gpu():
    totals = Totals(compile_s=100.0)
    meter = Meter()
    meter.count(totals, opened_at=0.0)
    extra = totals.extra
    assert extra["gpu_s"] == extra["gpu_idle_s"] > 0
    assert extra["cpu_s"] >= 100.0
    meter.count(totals, busy_s=1e9, opened_at=0.0)
    assert totals.extra["gpu_idle_s"] == 0.0


def test_a_gpu_costs_nothing_before_it_is_opened():
    totals = Totals()
    meter = Meter()
    opened_at = time.perf_counter()
    meter.count(totals, opened_at=opened_at)
    assert 0 < totals.extra["gpu_s"] <= time.perf_counter() - opened_at
    meter.count(totals, opened_at=time.perf_counter() + 60)
    assert totals.extra["gpu_s"] <= 0
    meter.count(totals, opened_at=opened_at - 1e6)  # an earlier problem opened it
    assert 0 < totals.extra["gpu_s"] < 1e6


def test_costs_and_estimates_in_words():
    assert cost_line(Totals()) == ""
    extra = {"gpu_s": 22.14, "gpu_idle_s": 3.0, "cpu_s": 158.24}
    assert cost_line(Totals(extra=extra)) == ("22.1 s of GPUs, 3.0 s of them idle; 158.2 s of CPUs")
    few, more = (typical_gpu_s(FP8, points, Effort.QUICK) for points in (3, 36))
    assert START_S < few < more < typical_gpu_s(FP8, 36, Effort.STANDARD)
    assert estimate_line(22.4, "NVIDIA_H200") == "about 22 s of one NVIDIA_H200"
    assert estimate_line(5400.0, "NVIDIA_H200") == "about 90 minutes of one NVIDIA_H200"


def test_several_runs_together_say_what_came_from_the_cache():
    one = Totals(
        configs_compiled=5, measurements=30, wall_s=1.5, extra={"kernels_cached": 7, "cpu_s": 3.0}
    )
    assert (
        work_line([one]) == "5 kernels compiled and 7 from the cache, 30 times taken, 1.5 s in all"
    )
    other = replace(one, extra={"kernels_cached": 2})
    assert work_line([one, other]) == (
        "10 kernels compiled and 9 from the cache, 60 times taken, 3.0 s in all"
    )
    none = Totals(extra={"kernels_cached": 0})
    assert work_line([none]) == "0 kernels compiled, 0 times taken, 0.0 s in all"
    single = Totals(configs_compiled=1, measurements=1, extra={"kernels_cached": 0})
    told = "1 kernel compiled, 1 time predicted, 0.0 s in all"
    assert work_line([single], predicted=True) == told
    replayed = Totals(measurements=268, wall_s=0.5)  # no compiler counted its cache
    assert work_line([replayed]) == "268 times read from a recording, 0.5 s in all"

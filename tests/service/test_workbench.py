"""What the runs of one command share: a GPU's child is set up for one problem after another."""

import os
from pathlib import Path

import fake_gpu_child as fake
import pytest

from tuner.errors import BadInput, NotEnoughMemory
from tuner.families.dense_gemm.problem import DensePart
from tuner.measure.gpu_worker import ChildLimits, GpuWorker, PendingMeasurement
from tuner.measure.workbench import Workbench
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, Measurement, Status

ENV = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
LIMITS = ChildLimits(request_s=30)
POINT = Point(8, DensePart.DENSE)


def pending(us: int, act: int | None = None) -> PendingMeasurement:
    values = {"US": us} if act is None else {"US": us, "ACT": act}
    fits = Compiled(Status.OK, shared_bytes=1024)
    return PendingMeasurement(Candidate(POINT, Config(values)), fits)


def measured(worker: GpuWorker, *some: PendingMeasurement) -> list[Measurement]:
    for one in some:
        worker.put(one)
    done: list[Measurement] = []
    while not worker.idle:
        done += [measurement for _, measurement in worker.collect(5.0)]
    return done


def pid(measurement: Measurement) -> str:
    """The number of the child that measured; the fake child says it first."""
    return measurement.detail.split()[0]


@pytest.fixture
def bench():
    with Workbench("fake_gpu_child", limits=LIMITS) as opened:
        yield opened


def worker_of(bench: Workbench, **answer: object) -> GpuWorker:
    return bench.worker("0", {"answer": answer}, ENV)


def test_a_second_problem_has_the_same_child_and_counts_of_its_own(bench):
    first = worker_of(bench, needed_bytes=10)
    (before,) = measured(first, pending(20))
    second = worker_of(bench, needed_bytes=20)
    assert second is first
    assert second.busy_s == 0
    assert second.ready["needed_bytes"] == 20
    (after,) = measured(second, pending(30))
    assert pid(after) == pid(before)


def test_a_child_that_was_started_early_is_the_one_that_is_set_up(bench):
    bench.start("0", ENV)
    started = bench._workers["0"]
    assert worker_of(bench) is started
    assert [m.median_us for m in measured(started, pending(20))] == [20]


def test_a_child_that_replaced_a_crashed_one_is_set_up_for_the_problem_at_hand(bench):
    worker_of(bench, device="NVIDIA_FIRST")
    worker = worker_of(bench, device="NVIDIA_SECOND")
    crashed, after = measured(worker, pending(20, fake.CRASH), pending(30))
    assert crashed.status is Status.CRASHED
    assert after.median_us == 30
    assert worker.ready["device"] == "NVIDIA_SECOND"
    assert worker.replaced == 2
    assert worker_of(bench).replaced == 0


def test_a_run_that_was_given_up_leaves_no_requests_to_the_next(bench):
    given_up = worker_of(bench)
    given_up.put(pending(20, fake.HANG))
    worker = worker_of(bench)
    assert worker is not given_up
    assert [m.median_us for m in measured(worker, pending(30))] == [30]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"needed_bytes": 5000}, NotEnoughMemory),
        ({"status": "bad_input", "detail": "no"}, BadInput),
    ],
)
def test_a_problem_that_cannot_be_set_up_does_not_harm_the_next(bench, answer, error):
    worker_of(bench)
    with pytest.raises(error):
        worker_of(bench, **answer)
    assert [m.median_us for m in measured(worker_of(bench), pending(30))] == [30]


def test_closing_ends_the_children():
    with Workbench("fake_gpu_child", limits=LIMITS) as bench:
        worker = worker_of(bench)
        (one,) = measured(worker, pending(20))
    assert not Path(f"/proc/{pid(one)}").exists()
    bench.close()  # again

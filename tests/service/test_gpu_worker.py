"""The lane and the GPU bench, with a child program that fails as it is told to."""

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import fake_gpu_child as fake
import pytest

from tuner.childprocess import ChildProcess
from tuner.errors import BadInput, GpuInUse, MeasurerFailed, MeasurerUnavailable, NotEnoughMemory
from tuner.families.attention.problem import AttentionPart
from tuner.families.fused_moe.problem import Gemm
from tuner.measure.gpu import GpuBench
from tuner.measure.gpu_worker import ChildLimits, GpuWorker, PendingMeasurement
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, Measurement, Status

POINT = Point(8, Gemm.UP)
FITS = Compiled(Status.OK, shared_bytes=1024)
ENV = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}


def config(us: int, act: int | None = None, **more: int) -> Config:
    return Config({"US": us, **({} if act is None else {"ACT": act}), **more})


def ticket(
    us: int, act: int | None = None, point: Point = POINT, **more: int
) -> PendingMeasurement:
    return PendingMeasurement(Candidate(point, config(us, act, **more)), FITS)


def children() -> set[int]:
    """This process's children, zombies included."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[1]) == os.getpid():
            found.add(int(stat.parent.name))
    return found


@pytest.fixture
def lane():
    lane = open_lane()
    yield lane
    lane.close()


def open_lane(limits: ChildLimits = ChildLimits(request_s=30), **answer: object) -> GpuWorker:
    return GpuWorker({"answer": answer}, ENV, limits, "fake_gpu_child")


def run(lane: GpuWorker, tickets: Sequence[PendingMeasurement]) -> list[Measurement]:
    for one in tickets:
        lane.put(one)
    done: list[tuple[PendingMeasurement, Measurement]] = []
    while not lane.idle:
        done += lane.collect(5.0)
    assert [one for one, _ in done] == list(tickets)  # each once, in order
    return [measurement for _, measurement in done]


def test_times_come_back_in_order_even_for_more_than_are_sent_ahead(lane):
    times = [100 + i for i in range(50)]
    done = run(lane, [ticket(us) for us in times])
    assert [m.median_us for m in done] == times
    assert lane.replaced == 0
    assert lane.busy_s == pytest.approx(0.050)


def test_child_is_told_every_coordinate_of_a_point(lane, bench):
    points = [
        POINT,
        Point(4, AttentionPart.EXTEND, 512, 8192),
        Point(4, AttentionPart.REDUCE, 1, 8192),
    ]
    done = run(lane, [ticket(20, point=point) for point in points])
    assert [m.detail.split(maxsplit=1)[1] for m in done] == [str(point) for point in points]
    (raced,) = bench.race([Candidate(points[1], config(5))], rounds=9).values()
    assert raced.detail.split(maxsplit=1)[1] == str(points[1])


@pytest.mark.parametrize("act", [fake.CRASH, fake.DIE])
def test_what_crashes_twice_costs_one_candidate_and_the_next_goes_on(lane, act):
    done = run(lane, [ticket(1), ticket(2, act), ticket(3), ticket(4)])
    assert [m.status for m in done] == [Status.OK, Status.CRASHED, Status.OK, Status.OK]
    assert lane.replaced == 2
    assert done[1].detail.startswith("crashed twice: ")
    assert ("as asked" if act == fake.CRASH else "exit code 7") in done[1].detail


@pytest.fixture
def once(monkeypatch, tmp_path):
    """What fails once says so in this folder."""
    monkeypatch.setitem(ENV, "ONCE", str(tmp_path))


@pytest.mark.parametrize("act", [fake.CRASH, fake.DIE])
def test_a_crash_costs_no_candidate_that_does_not_crash_again(once, act):
    lane = open_lane()
    done = run(lane, [ticket(1), ticket(2, act, ONCE=1), ticket(3), ticket(4, act, ONCE=2)])
    lane.close()
    assert [m.median_us for m in done] == [1, 2, 3, 4]
    assert lane.replaced == 2


def test_a_python_error_in_the_child_is_its_candidate_s_and_the_child_goes_on(lane, bench):
    first, raised, after = run(lane, [ticket(1), ticket(2, fake.RAISE), ticket(3)])
    assert (raised.status, raised.median_us) == (Status.CRASHED, None)
    assert raised.detail == "IndexError: list index out of range"
    assert lane.replaced == 0
    assert first.detail == after.detail  # one child
    raced = bench.race(candidates(config(5), config(6, fake.RAISE)), rounds=9)
    assert [m.status for m in raced.values()] == [Status.OK, Status.CRASHED]
    assert lane.replaced == 0


def killed(child: ChildProcess) -> None:
    """Kill a child as the kernel does that wants its memory; it is dead when this returns."""
    pid = child._process.pid
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_children_that_are_killed_while_they_idle_cost_nothing(lane):
    killed(lane._child)
    assert [m.median_us for m in run(lane, [ticket(1), ticket(2)])] == [1, 2]
    killed(lane._spare)
    killed(lane._child)
    assert [m.median_us for m in run(lane, [ticket(3), ticket(4)])] == [3, 4]


def test_a_hung_child_is_killed_after_the_limit_twice():
    lane = open_lane(ChildLimits(request_s=0.05, inputs_s=0.05))
    lane.put(ticket(2, fake.HANG))
    lost: list[tuple[PendingMeasurement, Measurement]] = []
    while not lost:
        lost = lane.collect(0.2)
    lane.close()
    assert lost[0][1].status is Status.TIMED_OUT
    assert lost[0][1].detail == "timed out twice: no result in 0.1 s"


def test_the_inputs_of_a_point_have_a_limit_of_their_own(once):
    """They are made for the first candidate, which is what the engine runs."""
    lane = open_lane(ChildLimits(request_s=30, inputs_s=100))
    other = replace(POINT, batch_size=16)
    limits = []
    crashes = {"act": fake.DIE, "ONCE": 1}
    for at, more in ((POINT, {}), (POINT, {}), (other, {}), (POINT, {}), (POINT, crashes)):
        lane.put(ticket(20, point=at, **more))
        limits.append(lane._limit_s())
        while not lane.idle:
            lane.collect(5.0)
            limits += [lane._limit_s()] if not lane.idle else []  # in another child
    lane.close()
    assert limits == [130, 30, 130, 130, 30, 130]


def test_the_warm_spare_takes_over(once):
    lane = open_lane()
    before = children()
    first, after = run(lane, [ticket(1), ticket(3, fake.CRASH, ONCE=1)])
    lane.close()
    pids = [int(m.detail.split()[0]) for m in (first, after)]
    assert pids[0] != pids[1]
    assert set(pids) <= before  # neither was started after the crash


def test_wrong_result_keeps_the_child(lane):
    done = run(lane, [ticket(1, fake.WRONG), ticket(2)])
    assert [m.status for m in done] == [Status.WRONG_RESULT, Status.OK]
    assert done[0].median_us is None
    assert lane.replaced == 0


ENDS_THE_RUN = pytest.mark.parametrize(
    ("act", "error"), [(fake.OUT_OF_MEMORY, NotEnoughMemory), (fake.BAD_INPUT, BadInput)]
)


@ENDS_THE_RUN
def test_what_no_other_candidate_would_be_spared_ends_the_run_and_says_why(lane, act, error):
    with pytest.raises(error, match="as asked"):
        run(lane, [ticket(1), ticket(2, act)])


def test_bad_input_does_so_in_a_race(bench):
    with pytest.raises(BadInput, match="as asked"):
        bench.race(candidates(config(5), config(6, fake.BAD_INPUT)), rounds=9)


def test_too_many_children_that_are_lost_in_a_row_end_the_run(once):
    lane = open_lane(ChildLimits(request_s=30, in_a_row=2))
    run(lane, [ticket(1, fake.CRASH, ONCE=1), ticket(2, fake.CRASH), ticket(3)])
    with pytest.raises(MeasurerFailed, match="3 measuring processes .* in a row: as asked"):
        run(lane, [ticket(4, fake.CRASH), ticket(5, fake.CRASH)])
    lane.close()


def test_nothing_is_left_of_a_closed_lane():
    before = children()
    lane = open_lane()
    run(lane, [ticket(1), ticket(2, fake.DIE), ticket(3)])
    lane.put(ticket(4, fake.HANG))
    lane.close()
    assert children() == before


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ({"needed_bytes": 5000}, NotEnoughMemory, "5,000 bytes of GPU memory, 1,000 are free"),
        ({"status": "crashed", "detail": "no GPU"}, MeasurerUnavailable, "no GPU"),
        ({"status": "bad_input", "detail": "not a tensor"}, BadInput, "not a tensor"),
        ({"status": "in_use", "detail": "pid 7 measures"}, GpuInUse, "pid 7 measures: .* --gpu"),
    ],
)
def test_set_up_that_fails_says_why_and_leaves_nothing(answer, error, words):
    before = children()
    with pytest.raises(error, match=words):
        open_lane(**answer)
    assert children() == before


def test_program_that_does_not_start_says_its_last_words():
    with pytest.raises(MeasurerUnavailable, match="No module named"):
        GpuWorker({}, ENV, ChildLimits(), "no_such_module")


class Compiling:
    """A compiler whose kernels are there at once; those with `BROKEN` never compile."""

    compiled_count, cached_count, compile_s = 3, 2, 1.5

    def __init__(self) -> None:
        self._ready: list[tuple[Candidate, Compiled]] = []

    def submit(self, candidates: Sequence[Candidate]) -> None:
        for candidate in candidates:
            status = Status.COMPILE_ERROR if candidate.config.get("BROKEN") else Status.OK
            self._ready.append((candidate, Compiled(status)))

    def poll(self, wait: bool) -> list[tuple[Candidate, Compiled]]:
        ready, self._ready = self._ready, []
        return ready


def trials_of(bench: GpuBench, candidates: Sequence[Candidate]):
    bench.submit(candidates)
    done = {}
    while some := bench.poll(wait=True):
        done.update({trial.candidate: trial.measurement for trial in some})
    return done


@pytest.fixture
def bench(lane):
    return GpuBench(Compiling(), lane)


def test_bench_measures_what_compiles(bench):
    good, broken = Candidate(POINT, config(5)), Candidate(POINT, Config({"US": 1, "BROKEN": 1}))
    done = trials_of(bench, [good, broken])
    assert done[good].median_us == 5
    assert done[broken].status is Status.COMPILE_ERROR
    assert bench.totals.measurements == 1
    assert bench.totals.extra["children_replaced"] == 0
    assert bench.environment == {
        **{"torch": "2", "cuda": "13", "driver": "1"},
        "backends": "sgl-deep-gemm 0.1.0",
    }


def test_bench_only_compiles_at_points_that_nobody_asked_for(lane):
    bench = GpuBench(Compiling(), lane, points=[POINT])
    elsewhere = Candidate(Point(16, Gemm.UP), config(5, fake.DIE))
    assert trials_of(bench, [elsewhere])[elsewhere].status is Status.INCUMBENT


def candidates(*configs):
    return [Candidate(POINT, one) for one in configs]


def test_race_times_all_in_one_request(bench):
    times = bench.race(candidates(config(5), config(6)), rounds=9)
    told = {c.config["US"]: (m.median_us, m.samples) for c, m in times.items()}
    assert told == {5: (5, 9), 6: (6, 9)}


@pytest.mark.parametrize("act", [fake.CRASH, fake.DIE, fake.OUT_OF_MEMORY])
def test_race_that_loses_its_child_twice_goes_on_without_the_culprit(bench, lane, act):
    times = bench.race(candidates(config(5), config(6, act), config(7)), rounds=9)
    assert {c.config["US"]: m.median_us for c, m in times.items()} == {5: 5, 6: None, 7: 7}
    (culprit,) = (m for m in times.values() if not m.timed)
    assert (culprit.status, "in the race: " in culprit.detail) == (Status.CRASHED, True)
    assert lane.replaced == 3


def test_race_that_loses_its_child_once_is_run_again(once):
    lane = open_lane()
    times = GpuBench(Compiling(), lane).race(
        candidates(config(5), config(6, fake.OUT_OF_MEMORY, ONCE=1)), rounds=9
    )
    lane.close()
    assert [m.median_us for m in times.values()] == [5, 6]
    assert lane.replaced == 1


def test_a_race_that_has_no_answer_in_time_twice_ends_all_races():
    lane = open_lane(ChildLimits(race_s=0.05))
    with pytest.raises(MeasurerFailed, match="timed out twice: no answer in 0.05 s"):
        GpuBench(Compiling(), lane).race(candidates(config(5, fake.HANG)), rounds=9)
    assert lane.replaced == 2
    lane.close()


def test_another_backend_is_not_compiled_here_and_is_raced_beside_triton(bench, lane):
    (tuned,), library = candidates(config(5)), Candidate(POINT, Config({}), "deep_gemm")
    assert bench.backends == {"deep_gemm": "sgl-deep-gemm 0.1.0"}
    bench.submit([library])
    (trial,) = bench.poll(wait=True)
    assert (trial.candidate, trial.compiled) == (library, Compiled(Status.OK, cached=True))
    assert trial.measurement.median_us == 4
    raced = bench.race([library, tuned], rounds=9)
    told = {one.backend: time.median_us for one, time in raced.items()}
    assert told == {"deep_gemm": 4, "triton": 5}


def test_a_backend_that_ends_the_child_costs_the_run_nothing_else(bench, lane):
    library = Candidate(POINT, Config({}), "fa3")
    done = trials_of(bench, [library, *candidates(config(5))])
    assert done[library].status is Status.CRASHED
    assert lane.replaced == 2
    raced = bench.race([library, *candidates(config(6))], rounds=9)
    assert [c.config for c, m in raced.items() if m.timed] == [config(6)]


def test_a_backend_that_ends_the_child_at_two_points_is_tried_at_no_other(bench, lane):
    points = [replace(POINT, batch_size=size) for size in (1, 2, 4, 8, 16)]
    libraries = [Candidate(point, Config({}), "fa3") for point in points]
    tuned = [Candidate(point, config(5)) for point in points]
    done = trials_of(bench, [*libraries, *tuned])
    assert lane.replaced == 4
    assert [done[one].status for one in libraries] == [Status.CRASHED] * 5
    died = ["crashed twice: the process ended (exit code 7)"] * 2
    untried = [f"not tried: FlashAttention 3 at 2 other points {died[0]}"] * 3
    assert [done[one].detail for one in libraries] == died + untried
    assert [done[one].median_us for one in tuned] == [5] * 5
    later = Candidate(replace(POINT, batch_size=32), Config({}), "fa3")
    assert trials_of(bench, [later])[later].detail == untried[0]
    assert lane.replaced == 4
    lane.set_up({"answer": {}})  # another problem may have the kernels
    assert trials_of(bench, [later])[later].detail == died[0]


def test_configurations_of_triton_that_end_the_child_are_all_tried(lane):
    points = [replace(POINT, batch_size=size) for size in (1, 2, 4)]
    done = run(lane, [ticket(5, fake.DIE, point=point) for point in points])
    assert {one.detail for one in done} == {"crashed twice: the process ended (exit code 7)"}
    assert lane.replaced == 6


def test_a_library_may_take_longer_than_a_candidate():
    limits, library = ChildLimits(), Candidate(POINT, Config({}), "flashinfer")
    assert limits.of(library) > limits.of(Candidate(POINT, config(5)))

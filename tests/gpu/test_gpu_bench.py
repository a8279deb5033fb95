"""Real kernels on a real GPU: right ones are timed, bad ones end with their own status."""

import os

import planted
import pytest
from gpu_benches import config, open_bench, this_device, trials_of

from tuner.devices.table import find_device
from tuner.engines.config_files import launch_config
from tuner.engines.engine import find_engine
from tuner.errors import BadInput, GpuInUse, NotEnoughMemory
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.fused_moe.problem import Gemm
from tuner.measure.gpu_worker import ChildLimits
from tuner.problems.points import Candidate, Point
from tuner.problems.registry import parse_problem
from tuner.problems.results import Status

pytestmark = pytest.mark.gpu
SMALL = "E=16,N=256,K=512,top_k=4"
BFLOAT16 = parse_problem(f"fused_moe:{SMALL},dtype=bfloat16")
GOOD, NAN, WRONG_ROW, ILLEGAL_ADDRESS, ENDLESS = 1, 2, 3, 4, 5  # as planted_kernel.py has them
POINT = Point(8, Gemm.UP)


@pytest.mark.parametrize(
    "dtype",
    [
        "bfloat16",
        "float16",
        "fp8_w8a8",
        "fp8_w8a8,block_shape=128x128",
        "int8_w8a8,per_channel_quant",
        "int8_w8a16",
        "int4_w4a16,block_shape=0x128",
    ],
)
def test_every_dtype_is_right_and_timed(dtype, tmp_path):
    problem, device = parse_problem(f"fused_moe:{SMALL},dtype={dtype}"), this_device()
    engine = find_engine("sglang")
    candidates = []
    for size in (3, 256):
        default = moe_engine(engine).incumbents(problem, device, size, "3.6.0")["default"]
        for gemm in Gemm:
            some = {launch_config(default[gemm]), config(16), config(64, block_n=128)}
            candidates += [Candidate(Point(size, gemm), one) for one in sorted(some)]
    with open_bench(problem, tmp_path) as bench:
        trials = trials_of(bench, candidates)
    assert set(trials) == set(candidates)
    for trial in trials.values():
        measurement = trial.measurement
        assert measurement.status is Status.OK, (trial.candidate, measurement)
        assert 0 < measurement.min_us <= measurement.median_us < 10_000


@pytest.fixture
def planted_engine(tmp_path, monkeypatch):
    """An engine whose kernel is right where GROUP_SIZE_M is 1, and bad on purpose elsewhere."""
    monkeypatch.setenv("TUNER_ENGINE_PATH", os.environ.get("TUNER_ENGINE_PATH", ""))  # for the end
    planted.made_up_engine(tmp_path / "engines")
    return find_engine(f"sglang=={planted.VERSION}")


def test_each_bad_kernel_ends_with_its_own_status_and_the_next_goes_on(planted_engine, tmp_path):
    groups = [GOOD, NAN, WRONG_ROW, ILLEGAL_ADDRESS, ENDLESS]
    candidates = [
        Candidate(POINT, config(m, group=group)) for m in (16, 32) for group in [*groups, 7]
    ]
    too_large = Candidate(POINT, config(256, block_n=256, stages=9))
    limits = ChildLimits(request_s=3.0)
    with open_bench(
        BFLOAT16, tmp_path, engine=planted_engine, limits=limits, thorough=True
    ) as bench:
        trials = trials_of(bench, [*candidates, too_large])
        replaced = bench.totals.extra["children_replaced"]
    expected = {
        GOOD: Status.OK,
        NAN: Status.WRONG_RESULT,
        WRONG_ROW: Status.WRONG_RESULT,
        ILLEGAL_ADDRESS: Status.CRASHED,
        ENDLESS: Status.TIMED_OUT,
        7: Status.OK,
    }
    found = {c.config: trials[c].measurement.status for c in candidates}
    assert found == {c.config: expected[c.config["GROUP_SIZE_M"]] for c in candidates}
    assert trials[too_large].measurement.status is Status.OUT_OF_RESOURCES
    assert replaced == 4


def test_race_times_all_that_may_still_win(tmp_path):
    configs = [config(16), config(32), config(64)]
    with open_bench(BFLOAT16, tmp_path) as bench:
        trials_of(bench, [Candidate(POINT, one) for one in configs])
        times = bench.race([Candidate(POINT, c) for c in configs], rounds=7)
    assert {c.config for c in times} == set(configs)
    assert {m.samples for m in times.values()} <= {3, 7}  # what has lost after 3 rounds is out
    assert min(times.values(), key=lambda m: m.median_us).samples == 7
    assert all(0 < m.min_us <= m.median_us for m in times.values())


def test_what_is_slower_is_compared_before_it_may_be_chosen(planted_engine, tmp_path):
    good, slow = config(16, group=GOOD), config(128, group=NAN)
    with open_bench(BFLOAT16, tmp_path, engine=planted_engine) as bench:
        (first,) = trials_of(bench, [Candidate(POINT, good)]).values()
        (second,) = trials_of(bench, [Candidate(POINT, slow)]).values()
        raced = bench.race([Candidate(POINT, c) for c in (good, slow)], rounds=3)
    assert "worst error" in first.measurement.detail
    assert second.measurement.status is Status.OK
    assert "not compared" in second.measurement.detail
    assert second.measurement.median_us > first.measurement.median_us
    assert raced[Candidate(POINT, good)].status is Status.OK
    assert raced[Candidate(POINT, slow)].status is Status.WRONG_RESULT


def test_race_goes_on_without_the_kernel_that_crashes(planted_engine, tmp_path):
    good, bad = config(16, group=GOOD), config(16, group=ILLEGAL_ADDRESS)
    with open_bench(BFLOAT16, tmp_path, engine=planted_engine) as bench:
        assert set(bench.race([Candidate(POINT, c) for c in (good, bad)], rounds=3)) == {
            Candidate(POINT, good)
        }


def test_too_large_a_problem_names_the_bytes_it_needs(tmp_path):
    huge = parse_problem("fused_moe:E=256,N=65536,K=8192,top_k=8,dtype=bfloat16")
    needed = r"need 8\d\d,\d{3},\d{3},\d{3} bytes of GPU memory"
    with pytest.raises(NotEnoughMemory, match=needed), open_bench(huge, tmp_path):
        pass


def test_another_card_is_refused_by_name(tmp_path):
    other = find_device("L40S" if "L40S" not in this_device().name else "H200")
    words = f"is a {this_device().name}, not a {other.name}"
    with (
        pytest.raises(BadInput, match=words),
        open_bench(BFLOAT16, tmp_path, device=other),
    ):
        pass


def test_two_processes_do_not_measure_on_one_gpu(tmp_path):
    candidate = Candidate(POINT, config(16))
    with (
        open_bench(BFLOAT16, tmp_path),
        pytest.raises(GpuInUse, match=r"another process \(pid \d+\) measures on GPU-"),
        open_bench(BFLOAT16, tmp_path),
    ):
        raise AssertionError("both may measure")
    with open_bench(BFLOAT16, tmp_path) as bench:  # the lock ended with the first one's child
        assert trials_of(bench, [candidate])[candidate].measurement.status is Status.OK

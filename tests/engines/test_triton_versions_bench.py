"""The comparison of two Tritons on a GPU: what of it runs without one."""

from types import SimpleNamespace

import pytest
from benchmark_scripts import load_script
from cases import FP8, config

from tuner.compile.environment import TritonRelease, installed_triton
from tuner.devices.target import cuda_target
from tuner.engines.engine import find_engine
from tuner.engines.sglang.fused_moe.binding import lift_fused_moe
from tuner.engines.triton_release import find_triton
from tuner.families.fused_moe.inputs import grid_size
from tuner.families.fused_moe.problem import Gemm

ENGINE, NEW = "sglang==0.5.16", "3.8.0"


@pytest.fixture(scope="module")
def bench():
    return load_script("triton_versions_gpu.py")


@pytest.fixture(scope="module")
def bound():
    return lift_fused_moe(find_engine(ENGINE)).bind(
        FP8, Gemm.UP, 64, config(16, 64, 64, 4, 2), cuda_target(9, 0)
    )


def test_a_binding_is_the_same_after_the_journey(bench, bound):
    again = bench.read_binding(bench.binding_json(bound))
    assert (again.function, dict(again.arguments)) == (bound.function, dict(bound.arguments))
    assert grid_size(again) == grid_size(bound)


def test_both_tritons_machine_code_takes_the_arguments_that_are_packed(bench, bound, tmp_path):
    """Each argument has the size that the cubin says, the two scratch pointers included."""
    folder = find_triton(NEW)
    if folder is None:
        pytest.skip(f"no triton-{NEW} beside the engines: `make test` unpacks it")
    old = installed_triton()
    variant = bound.variant().as_json()
    plan = {"engine": ENGINE, "arch": 90, "variants": {"one": variant}}
    bench.compile_with([TritonRelease(old), TritonRelease(NEW, folder)], plan, tmp_path)
    tensor = SimpleNamespace(data_ptr=lambda: 1 << 40)
    kinds = variant["signature"].values()
    packed = bench.c_arguments(variant["signature"], [tensor if k[0] == "*" else 1 for k in kinds])
    for triton in (old, NEW):
        cubin = (tmp_path / triton / "one.cubin").read_bytes()
        assert bench.parameter_sizes(cubin) == [bench.ctypes.sizeof(one) for one in packed]
    assert packed[0].value == 1 << 40
    assert [one.value for one in packed[-2:]] == [0, 0]


def test_the_driver_is_given_each_argument_s_address(bench, bound, monkeypatch):
    given = []

    def launch(function, x, y, z, *rest):
        threads, _, _, shared, stream, places, _ = rest
        pointer, number = bench.ctypes.c_uint64, bench.ctypes.c_int32
        read = [
            kind.from_address(place).value
            for kind, place in zip((pointer, number), places, strict=False)
        ]
        given.append(((x, y, z), threads, shared, stream.value, read))
        return 0

    monkeypatch.setattr(bench, "driver", lambda: SimpleNamespace(cuLaunchKernel=launch))
    facts = {"name": "k", "shared": 1024, "num_warps": 4}
    signature = {"a": "*bf16", "BLOCK": "constexpr", "n": "i32"}
    kernel = bench.DriverKernel(None, facts, signature, bound, (7,))
    kernel.launch([SimpleNamespace(data_ptr=lambda: 1 << 40), 64, 5], stream=9)
    assert given == [((7, 1, 1), 128, 1024, 9, [1 << 40, 5])]


def test_a_kernel_that_a_plain_launch_cannot_run_is_refused(bench):
    plain = {
        "name": "k",
        "shared": 1,
        "num_warps": 4,
        "num_ctas": 1,
        **dict.fromkeys(("launch_pdl", "launch_cooperative_grid"), False),
        **dict.fromkeys(("global_scratch_size", "profile_scratch_size"), 0),
    }
    assert bench.launch_facts(SimpleNamespace(**plain))["num_warps"] == 4
    for change in ({"launch_pdl": True}, {"num_ctas": 2}, {"global_scratch_size": 16}):
        with pytest.raises(AssertionError):
            bench.launch_facts(SimpleNamespace(**plain | change))


def test_the_summary_counts_points_whose_best_changes(bench):
    def point(*pairs):
        rows = [{"old_us": old, "new_us": new} for old, new in pairs]
        return {"triton_own_us": pairs[0][0], "rows": rows}

    found = bench.summary(
        [point((10, 10), (11, 9)), point((10, 10), (20, 20)), point((8, 8.01), (9, 8))]
    )
    assert (found["points"], found["configurations"]) == (3, 6)
    assert (found["other_best"], found["other_best_beyond_noise"]) == (2, 1)
    assert found["cost_of_keeping_the_old_best"]["max"] == pytest.approx(10 / 9)
    assert found["best_new_over_best_old"]["min"] == pytest.approx(0.9)
    assert found["own_launcher_over_driver"] == [1, 1, 1]

"""Which configurations are legal, and how to move among them."""

import math
from functools import cache
from pathlib import Path

import pytest
from cases import FP8, FP8_RECORDING, INT8, config
from draws import times
from hypothesis import given
from hypothesis import strategies as st

from tuner.bindings.sglang.fused_moe.binding import takes_tma
from tuner.devices.table import find_device
from tuner.families.attention.space import smaller_configs
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.families.fused_moe.recording import read_recording
from tuner.families.fused_moe.space import space_for, spaces_at
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, Point
from tuner.problems.results import Status
from tuner.tuning.space import Space

DATA = Path(__file__).parents[1] / "data"
BF16 = FusedMoe(8, 14336, 4096, 2, Dtype.BFLOAT16)


@pytest.fixture(scope="module")
def recording():
    return read_recording(FP8_RECORDING)


@cache
def space(
    problem: FusedMoe = FP8, device: str = "H200", gemm: Gemm = Gemm.UP, wide: bool = False
) -> Space:
    tma = gemm is Gemm.DOWN and takes_tma(problem, gemm)  # as before 0.5.23
    return space_for(problem, find_device(device), gemm, wide=wide, tma=tma)


def test_the_default_space_is_the_engines_grid():
    # get_configs_compute_bound has 5 * 4 * 3 * 4 * 2 * 4 = 1,920; 48 of them have
    # tiles of 65,536 elements with 4 warps.
    assert len(space(INT8)) == 1920 - 48 - _hopeless(INT8, "H200")


def _hopeless(problem: FusedMoe, device: str) -> int:
    """Grid points whose pipelined tiles alone exceed the device's shared memory."""
    size = problem.dtype.activation_bits // 8
    limit = find_device(device).shared_optin_bytes
    return sum(
        (stages - 1) * (m + n) * k * size > limit and not (m * n == 65536 and warps == 4)
        for m in (16, 32, 64, 128, 256)
        for n in (32, 64, 128, 256)
        for k in (64, 128, 256)
        for _ in (1, 16, 32, 64)
        for warps in (4, 8)
        for stages in (2, 3, 4, 5)
    )


@pytest.mark.parametrize("gemm", Gemm)
def test_the_recordings_grid_is_the_space_but_for_the_hopeless(recording, gemm):
    recorded = {c.config: t for c, t in recording.trials.items() if c.point.part is gemm}
    legal = set(space(gemm=gemm).configs())
    assert legal < set(recorded)
    left_out = set(recorded) - legal
    assert {recorded[c].measurement.status for c in left_out} == {Status.OUT_OF_RESOURCES}
    assert len(left_out) == 4


def test_the_shared_memory_floor_is_below_what_every_kernel_took(recording):
    # On a device with just as much as a kernel took, the kernel must be legal.
    assert recording.trials
    for candidate, trial in recording.trials.items():
        c = candidate.config
        floor = (c["num_stages"] - 1) * (c["BLOCK_SIZE_M"] + c["BLOCK_SIZE_N"]) * c["BLOCK_SIZE_K"]
        assert trial.compiled.shared_bytes is not None
        assert floor <= trial.compiled.shared_bytes


@pytest.mark.parametrize(
    ("problem", "gemm", "broken", "rule"),
    [
        (FP8, Gemm.UP, config(k=256), "BLOCK_SIZE_K divides the quantisation block"),
        (FP8, Gemm.UP, config(m=256, n=256, k=64, warps=4), "at most 256 accumulators a thread"),
        (FP8, Gemm.UP, config(m=256, n=256, warps=8, stages=5), "pipelined tiles fit"),
        (
            FusedMoe(8, 96, 2880, 2, Dtype.INT4_W4A16, (0, 32)),
            Gemm.UP,
            config(k=128),
            "BLOCK_SIZE_K divides the reduced length",
        ),
        (
            FusedMoe(8, 192, 3072, 2, Dtype.FP8_W8A8, (96, 128)),
            Gemm.UP,
            config(n=64),
            "BLOCK_SIZE_N divides the quantisation block",
        ),
    ],
)
def test_a_broken_rule_says_what_and_why(problem, gemm, broken, rule):
    there = space(problem, gemm=gemm)
    found = there.broken_rule(broken)
    assert found is not None and found.name.startswith(rule)
    assert found.source
    assert not there.legal(broken)
    assert there.legal(there.nearest(broken))


def test_groups_smaller_than_any_step_leave_int4_a_space():
    # fused_moe_kernel_gptq_awq looks its group up for each element: a step may span groups.
    assert len(space(FusedMoe(8, 512, 4096, 2, Dtype.INT4_W4A16, (0, 32)))) > 1000


def test_blocks_smaller_than_the_grid_widen_it():
    there = space(FusedMoe(8, 512, 4096, 2, Dtype.FP8_W8A8, (32, 32)))
    assert {c["BLOCK_SIZE_K"] for c in there.configs()} == {32}


def test_nothing_is_hopeless_where_rows_are_not_copied_asynchronously():
    odd = FusedMoe(8, 100, 4100, 2, Dtype.INT8_W8A8, per_channel_quant=True)  # 4,100 % 16 == 4
    even = FusedMoe(8, 100, 4096, 2, Dtype.INT8_W8A8, per_channel_quant=True)
    deep = config(m=128, n=256, k=256, warps=8, stages=5)
    assert space(odd, "L40S").legal(deep)
    assert not space(even, "L40S").legal(deep)


@pytest.mark.parametrize("problem", [FP8, INT8, BF16])
def test_the_wide_space_surrounds_the_default_space(problem):
    assert set(space(problem).configs()) < set(space(problem, wide=True).configs())


@pytest.mark.parametrize(
    ("problem", "device", "gemm", "tma"),
    [
        (FP8, "H200", Gemm.DOWN, True),
        (FP8, "B200", Gemm.DOWN, True),
        (FP8, "H200", Gemm.UP, False),
        (FP8, "L40S", Gemm.DOWN, False),
        (INT8, "H200", Gemm.DOWN, False),
        (FusedMoe(256, 256, 7168, 8, Dtype.FP8_W8A8), "H200", Gemm.DOWN, True),
        (FusedMoe(128, 704, 2048, 8, Dtype.BFLOAT16), "H200", Gemm.DOWN, True),
    ],
)
def test_tma_is_for_down_on_hopper_and_later_but_not_for_scales_by_token(
    problem, device, gemm, tma
):
    there = space(problem, device, gemm, wide=True)
    assert ("USE_TMA" in there.axes) is tma


def test_nearest_snaps_what_comes_from_elsewhere():
    there = space()
    assert there.nearest(config()) == config()
    bare = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}
    assert there.nearest(bare) == config(16, 32, 64)  # Triton's own warps and stages
    odd = Config({**config(k=512, warps=1, stages=9), "USE_TMA": 1, "waves_per_eu": 2})
    assert there.nearest(odd) == config(k=128, warps=4, stages=5)


@times(0.5)
@given(st.fixed_dictionaries({name: st.integers(1, 600) for name in config()}))
def test_nearest_is_legal_whatever_comes(values):
    there = _SPACE
    snapped = there.nearest(values)
    assert there.legal(snapped)
    assert there.nearest(snapped) == snapped

    def octaves(config: Config) -> float:
        return sum(abs(math.log2(config[name]) - math.log2(values[name])) for name in there.axes)

    assert octaves(snapped) == pytest.approx(min(map(octaves, there.configs())))


_SPACE = space(INT8, "L40S")


def test_neighbours_are_one_step_of_one_axis_away_and_mutual():
    assert _SPACE.configs()
    for here in _SPACE.configs()[::37]:
        neighbours = _SPACE.neighbours(here)
        assert neighbours
        for near in neighbours:
            steps = _steps(_SPACE, here, near)
            assert sorted(map(abs, steps)) == [0, 0, 0, 0, 0, 1]
            assert here in _SPACE.neighbours(near)
            assert _SPACE.legal(near)


def test_exchanges_trade_one_growing_axis_for_another():
    traded = 0
    for here in _SPACE.configs()[::37]:
        for near in _SPACE.exchanges(here):
            traded += 1
            assert sorted(_steps(_SPACE, here, near)) == [-1, 0, 0, 0, 0, 1]
            assert near["GROUP_SIZE_M"] == here["GROUP_SIZE_M"]
            assert _SPACE.legal(near)
    assert traded


def _steps(there: Space, a: Config, b: Config) -> list[int]:
    here, next_ = there.indices(a), there.indices(b)
    return [next_[name] - here[name] for name in here]


def test_a_larger_config_is_larger_along_every_growing_axis():
    there = space()
    assert there.at_least_as_large(config(m=128, warps=8), config(m=64, warps=4))
    assert not there.at_least_as_large(config(m=128, stages=2), config(m=64, stages=3))


def test_any_family_can_have_a_space():
    attention = Space({"BLOCK_N": (16, 32, 64), "num_stages": (1, 2)})
    assert len(attention) == 6
    assert attention.nearest({"BLOCK_N": 48, "num_stages": 7})["num_stages"] == 2
    assert math.prod(map(len, attention.axes.values())) == len(attention.configs())


# The spaces of points


def at(batch_size: int, problem: FusedMoe = FP8) -> Space:
    point = Point(batch_size, Gemm.UP)
    return spaces_at([point], problem, {Gemm.UP: space(problem)})[point]


def groups(of: Space, block_m: int) -> set[int]:
    return {c["GROUP_SIZE_M"] for c in of.configs() if c["BLOCK_SIZE_M"] == block_m}


@pytest.mark.parametrize(
    ("batch_size", "block_m", "different"),
    [
        (1, 64, {1, 16}),  # 8 slots, 8 rows of tiles
        (2, 64, {1, 16}),  # 16 rows of tiles
        (3, 16, {1, 16, 32}),  # 24
        (4, 128, {1, 16, 32}),  # 32
        (8, 256, {1, 16, 32, 64}),
        (4096, 16, {1, 16, 32, 64}),
    ],
)
def test_groups_of_equal_launches_are_tried_once(batch_size, block_m, different):
    assert groups(at(batch_size), block_m) == different


@given(st.integers(1, 300), st.sampled_from(["rows", "experts"]), st.data())
def test_equal_groups_are_the_ones_that_visit_tiles_in_the_same_order(batch_size, routing, data):
    problem = FusedMoe(8, 3584, 4096, 2, Dtype.BFLOAT16)
    here = at(batch_size, problem)
    left_out = [c for c in space(problem).configs() if not here.legal(c)]
    if not left_out:
        return
    config = data.draw(st.sampled_from(left_out))
    valid, block_m = 2 * batch_size, config["BLOCK_SIZE_M"]
    # The rows of tiles that tokens fill: the fewest with one pair of experts, at most one more for
    # each expert.
    experts = 2 if routing == "rows" else min(8, valid)
    rows = sum(-(-share // block_m) for share in _shares(valid, experts))
    kept = here.settled(config)
    assert here.legal(kept)
    orders = [_order(rows, 5, one["GROUP_SIZE_M"]) for one in (config, kept)]
    assert orders[0] == orders[1]


def _shares(total: int, parts: int) -> list[int]:
    return [total // parts + (i < total % parts) for i in range(parts)]


def _order(rows: int, columns: int, group: int) -> list[tuple[int, int]]:
    """The tiles in the order of program ids, as in `fused_moe_kernel`."""
    order = []
    for pid in range(rows * columns):
        first = pid // (group * columns) * group
        size = min(rows - first, group)
        inside = pid % (group * columns)
        order.append((first + inside % size, inside // size))
    return order


def test_smaller_constants_of_attention_give_up_stages_first_and_end_at_the_least():
    own = Config({"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3})
    found = [(c["num_stages"], c["BLOCK_N"], c["BLOCK_M"]) for c in smaller_configs(own)]
    assert found == [(2, 64, 64), (1, 64, 64), (1, 32, 64), (1, 16, 64), (1, 16, 32), (1, 16, 16)]
    assert all(c["num_warps"] == 8 for c in smaller_configs(own))
    assert list(smaller_configs(Config({"num_warps": 4}))) == []

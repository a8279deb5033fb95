"""The configurations that are legal for a dense GEMM, for all sizes and for one."""

from collections.abc import Mapping

import pytest
from cases import H200, L40S
from gemm_cases import BLOCKS, CHANNELS, SMALL_BLOCKS, tile

from tuner.devices.table import Device
from tuner.families.dense_gemm.problem import BATCH_SIZES, DenseGemm
from tuner.families.dense_gemm.space import gemm_space, space_at
from tuner.problems.points import Config
from tuner.tuning.space import Space

HOPPER = {"SWAP_AB": (0, 1), "SPLIT_K": (1, 2, 4, 8, 16)}


def space(
    problem: DenseGemm = BLOCKS,
    device: Device = L40S,
    choices: Mapping[str, tuple[int, ...]] | None = None,
) -> Space:
    return gemm_space(problem, device, choices or {}, lambda config: config)


def at(M: int, whole: Space, problem: DenseGemm = BLOCKS, device: Device = L40S) -> Space:
    return space_at(whole, problem, device, M)


def test_a_step_divides_the_quantisation_block():
    assert space().axes["BLOCK_SIZE_K"] == (64, 128)
    assert space(SMALL_BLOCKS).axes["BLOCK_SIZE_K"] == (32,)
    odd = DenseGemm(256, 960, BLOCKS.dtype, (96, 96))
    assert space(odd).axes["BLOCK_SIZE_K"] == (96,)
    assert max(space(CHANNELS).axes["BLOCK_SIZE_K"]) == 1024


def test_a_step_that_the_loader_would_raise_is_left_out():
    def raises(config: Config) -> Config:
        return config.replace(BLOCK_SIZE_K=max(128, config["BLOCK_SIZE_K"]))

    assert gemm_space(BLOCKS, L40S, {}, raises).axes["BLOCK_SIZE_K"] == (128,)


@pytest.mark.parametrize(
    "config",
    [tile(), tile(16, 32, stages=6), tile(64, 32, stages=5), tile(128, 128, warps=8, stages=4)],
)
def test_known_winners_and_the_default_are_legal(config):
    assert space().legal(config)


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        (tile(128, 128), "at most 64 accumulators a thread"),
        (tile(256, 64), "at most 64 accumulators a thread"),
        (tile(16, 128, warps=2), "64 threads for the smallest tiles alone"),
        (tile(16, 32, warps=8), "eight warps have four accumulators a thread"),
        (tile(128, 128, warps=8, stages=6), "pipelined tiles fit into shared memory"),
    ],
)
def test_rules_say_why_a_configuration_is_not(config, rule):
    broken = space().broken_rule(config)
    assert broken.name == rule
    assert broken.source


def test_channels_have_no_group_and_larger_tiles():
    channels = space(CHANNELS)
    assert "GROUP_SIZE_M" not in channels.axes
    wide = {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128}
    assert channels.legal(Config({**wide, "num_warps": 4, "num_stages": 3}))


def test_neutral_values_are_never_written():
    hopper = space(device=H200, choices=HOPPER)
    assert hopper.legal(tile())
    assert all(c.get("SWAP_AB", 1) and c.get("SPLIT_K", 2) > 1 for c in hopper.configs())
    swapped = tile(16, 64, stages=4).replace(SWAP_AB=1, SPLIT_K=8)
    assert hopper.legal(swapped)
    assert not hopper.legal(tile(64, 64).replace(SWAP_AB=1))
    assert hopper.nearest({**tile(), "SPLIT_K": 1, "SWAP_AB": 0}) == tile()
    assert hopper.at(hopper.indices(swapped)) == swapped
    assert hopper.at(hopper.indices(tile())) == tile()


class TestAtOneSize:
    def test_every_size_has_configurations_of_the_whole_space(self, subtests):
        whole = space()
        for M in BATCH_SIZES:
            with subtests.test(M=M):
                narrowed = at(M, whole)
                assert 100 < len(narrowed) < len(whole)
                assert all(whole.legal(config) for config in narrowed.configs())

    def test_small_batches_get_no_tall_tiles_and_large_ones_no_flat_ones(self):
        whole = space()
        assert {c["BLOCK_SIZE_M"] for c in at(1, whole).configs()} == {16, 32, 64}
        assert {c["BLOCK_SIZE_M"] for c in at(4096, whole).configs()} == {64, 128, 256}

    def test_groups_that_are_the_same_are_tried_once(self):
        whole = space()
        assert {c["GROUP_SIZE_M"] for c in at(16, whole).configs()} == {1}
        tiles = {c["BLOCK_SIZE_M"]: set() for c in at(64, whole).configs()}
        for c in at(64, whole).configs():
            tiles[c["BLOCK_SIZE_M"]].add(c["GROUP_SIZE_M"])
        assert tiles == {16: {1, 16}, 32: {1, 16}, 64: {1}}

    def test_the_nearest_configuration_runs_the_same_way(self):
        narrowed = at(16, space())
        assert narrowed.nearest(tile(group=32)) == tile(group=1)
        assert at(4096, space()).nearest(tile(group=32)) == tile(group=32)

    def test_k_is_split_only_where_multiprocessors_would_idle(self):
        whole = space(device=H200, choices=HOPPER)
        small, large = at(1, whole, device=H200), at(4096, whole, device=H200)
        assert max(c.get("SPLIT_K", 1) for c in small.configs()) == 16
        assert max(c.get("SPLIT_K", 1) for c in large.configs()) == 1

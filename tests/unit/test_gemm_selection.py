"""Which sizes of a dense GEMM a request asks for, and files that begin with large ones."""

import pytest
from gemm_cases import BLOCKS, point, tile

from tuner.errors import BadInput
from tuner.families.dense_gemm.check import ladder_warning
from tuner.families.dense_gemm.family import FAMILY
from tuner.families.dense_gemm.problem import BATCH_SIZES, parse_dense_gemm, same_weights
from tuner.families.dense_gemm.space import relatives
from tuner.problems.points import Config


def test_without_sizes_the_engines_ladder_is_tuned():
    everything = FAMILY.read_selection(BLOCKS, {})
    assert {one.batch_size for one in everything.points(BLOCKS)} == set(BATCH_SIZES)
    assert min(BATCH_SIZES) == 1
    assert max(BATCH_SIZES) == 4096


def test_sizes_come_in_order_and_once():
    some = FAMILY.read_selection(BLOCKS, {"batch_sizes": [64, 1, 64]})
    assert some.as_json() == {"batch_sizes": [1, 64]}


@pytest.mark.parametrize("sizes", [[], [0], [1 << 20]])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(BadInput, match="whole numbers from 1"):
        FAMILY.read_selection(BLOCKS, {"batch_sizes": sizes})


def test_the_output_type_does_not_keep_winners_apart():
    half = parse_dense_gemm(f"{BLOCKS.spec()},out=float16")
    assert half != BLOCKS
    assert same_weights(BLOCKS, half)
    assert not same_weights(BLOCKS, parse_dense_gemm(BLOCKS.spec().replace("2112", "4608")))


class TestLadders:
    def test_a_file_without_small_sizes_is_likely_to_be_slower_than_none(self):
        warning = ladder_warning({2048: tile(), 4096: tile()})
        assert "every batch below 2048 runs the entry for 2048" in warning
        assert "sglang #20368" in warning

    @pytest.mark.parametrize("least", [1, 64])
    def test_a_file_that_begins_with_what_a_server_decodes_is_fine(self, least):
        assert ladder_warning({least: tile(), 4096: tile()}) == ""

    def test_a_null_entry_holds_its_size(self):
        assert ladder_warning({1: Config({}), 4096: tile()}) == ""


class TestRelatives:
    def test_winners_of_the_nearest_gemm_come_first(self):
        far = parse_dense_gemm(BLOCKS.spec().replace("N=2112", "N=36864"))
        near = parse_dense_gemm(BLOCKS.spec().replace("N=2112", "N=3072"))
        chosen = [(far, {point(1): tile(16)}), (near, {point(1): tile(32)})]
        assert relatives(BLOCKS, chosen) == {1: [tile(32), tile(16)]}

    def test_other_kernels_say_nothing(self):
        others = ["fp8_w8a8,block=32x32", "int8_w8a8,block=128x128"]
        problems = [parse_dense_gemm(f"block_gemm:N=2112,K=7168,dtype={o}") for o in others]
        assert relatives(BLOCKS, [(p, {point(1): tile()}) for p in problems]) == {}

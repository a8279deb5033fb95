"""The gain of tuned kernels at the sizes of a server's steps."""

import pytest
from attention_cases import point

from tuner.families.attention.problem import Stage
from tuner.families.fused_moe.problem import Gemm
from tuner.problems.points import Point
from tuner.profile import Phase, Step
from tuner.profile.headroom import ratio, times_at

DECODE = Step(Phase.DECODE, 8, 0, 1, 100.0)
CHUNK = Step(Phase.PREFILL, 1, 8192, 4, 100.0)
# Decode becomes 1.25 times as fast after 1,000 tokens, and 3 times after 9,000.
SHORT, LONG = (10.0, 8.0), (90.0, 30.0)
DECODES = {point(Stage.DECODE, 8, 1, 1000): SHORT, point(Stage.DECODE, 8, 1, 9000): LONG}


def gain_at(timed, step):
    return ratio(times_at(timed, step))


def test_all_lengths_count():
    assert gain_at(DECODES, DECODE) == pytest.approx(100 / 38)


def test_parts_count_together():
    reduces = {point(Stage.REDUCE, 8, 1, 1000): (2.0, 4.0)}  # slower, for the sake of decode
    assert gain_at({**DECODES, **reduces}, DECODE) == pytest.approx(52 / 23)


def test_sequences_and_new_tokens_choose_the_size_as_in_engines():
    extends = {
        point(Stage.EXTEND, 1, 8192, 0): (10.0, 8.0),
        point(Stage.EXTEND, 1, 4096, 20_000): (60.0, 30.0),
    }
    assert gain_at(extends, CHUNK) == pytest.approx(1.25)
    # Where two sizes are equally near, the smaller one counts.
    pair = {point(Stage.DECODE, 16, 1, 1000): LONG, point(Stage.DECODE, 4, 1, 1000): SHORT}
    assert gain_at(pair, DECODE) == pytest.approx(1.25)


def test_sizes_in_tokens_are_chosen_by_tokens():
    gemms = {
        Point(size, gemm): times
        for size, times in ((8, (30.0, 20.0)), (8192, (9.0, 9.0)))
        for gemm in Gemm
    }
    assert gain_at(gemms, DECODE) == pytest.approx(1.5)
    assert gain_at(gemms, CHUNK) == pytest.approx(1.0)

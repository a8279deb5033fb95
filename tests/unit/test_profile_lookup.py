"""The gain of tuned kernels at the sizes and lengths of a server's steps."""

from __future__ import annotations

import pytest
from attention_cases import point

from tuner.families.attention.problem import Stage
from tuner.families.fused_moe.problem import Gemm
from tuner.problems.points import Point
from tuner.profile import Phase, Step
from tuner.profile.lookup import ratio, times_at

DECODE = Step(Phase.DECODE, 8, 0, 1, 100.0)
CHUNK = Step(Phase.PREFILL, 1, 8192, 4, 100.0)
# Decode becomes 1.25 times as fast after 1,000 tokens, and 3 times after 9,000.
SHORT, LONG = (10.0, 8.0), (90.0, 30.0)
DECODES = {point(Stage.DECODE, 8, 1, 1000): SHORT, point(Stage.DECODE, 8, 1, 9000): LONG}


def gain_at(timed, step, cached):
    return ratio(times_at(timed, step, cached))


def test_decode_is_looked_up_at_its_cached_tokens():
    assert gain_at(DECODES, DECODE, [1000]) == pytest.approx(1.25)
    assert gain_at(DECODES, DECODE, [9000]) == pytest.approx(3.0)


def test_between_two_lengths_times_are_interpolated():
    assert gain_at(DECODES, DECODE, [5000]) == pytest.approx(50 / 19)
    assert 1.25 < gain_at(DECODES, DECODE, [1001]) < 1.26


def test_beyond_the_lengths_the_nearest_counts():
    assert gain_at(DECODES, DECODE, [100]) == gain_at(DECODES, DECODE, [1000])
    assert gain_at(DECODES, DECODE, [100_000]) == gain_at(DECODES, DECODE, [9000])


def test_without_lengths_all_of_them_count():
    assert gain_at(DECODES, DECODE, []) == pytest.approx(100 / 38)


def test_parts_are_interpolated_each_alone_and_count_together():
    reduces = {point(Stage.REDUCE, 8, 1, 1000): (2.0, 4.0)}  # slower, for the sake of decode
    assert gain_at({**DECODES, **reduces}, DECODE, [5000]) == pytest.approx(52 / 23)


def test_chunks_of_a_prompt_count_at_their_own_lengths():
    extends = {
        point(Stage.EXTEND, 1, 8192, 0): (10.0, 10.0),
        point(Stage.EXTEND, 1, 8192, 24576): (70.0, 35.0),
        point(Stage.EXTEND, 1, 512, 0): (1.0, 0.1),
    }
    assert gain_at(extends, CHUNK, [0]) == pytest.approx(1.0)
    every = [0, 8192, 16384, 24576]
    assert gain_at(extends, CHUNK, every) == pytest.approx(4 * 40 / (4 * 22.5))


def test_sequences_and_new_tokens_choose_the_size_as_in_engines():
    extends = {
        point(Stage.EXTEND, 1, 8192, 0): (10.0, 8.0),
        point(Stage.EXTEND, 1, 4096, 20_000): (60.0, 30.0),
    }
    assert gain_at(extends, CHUNK, [24576]) == pytest.approx(1.25)
    # Where two sizes are equally near, the smaller one counts.
    pair = {point(Stage.DECODE, 16, 1, 1000): LONG, point(Stage.DECODE, 4, 1, 1000): SHORT}
    assert gain_at(pair, DECODE, [1000]) == pytest.approx(1.25)


def test_sizes_in_tokens_have_no_lengths():
    gemms = {
        Point(size, gemm): times
        for size, times in ((8, (30.0, 20.0)), (8192, (9.0, 9.0)))
        for gemm in Gemm
    }
    assert gain_at(gemms, DECODE, [5000]) == pytest.approx(1.5)
    assert gain_at(gemms, CHUNK, [0, 8192]) == pytest.approx(1.0)

"""How far an output is from its reference."""

import math

import pytest

pytest.importorskip("torch")
import torch

from tuner.measure.accuracy import scale_of, worst_error

EXPECTED = torch.tensor([3.0, -4.0, 0.0, 0.0])  # its root mean square is 2.5


def test_an_error_is_a_share_of_the_value_and_of_the_whole() -> None:
    output = EXPECTED + torch.tensor([0.0, 0.65, 0.0, -0.25])
    assert worst_error(output, EXPECTED) == pytest.approx(0.1, rel=0.004)
    assert worst_error(output, EXPECTED, scale_of(EXPECTED)) == worst_error(output, EXPECTED)
    assert worst_error(EXPECTED.bfloat16(), EXPECTED) == 0.0


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_infinitely_wrong(wrong: float) -> None:
    output = EXPECTED.clone()
    output[2] = wrong
    assert worst_error(output, EXPECTED) == math.inf


def test_the_output_and_the_reference_stay() -> None:
    output, expected = EXPECTED + 1, EXPECTED.clone()
    worst_error(output, expected)
    assert torch.equal(output, EXPECTED + 1) and torch.equal(expected, EXPECTED)

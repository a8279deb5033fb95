"""How far an output is from its reference."""

import math

import pytest

pytest.importorskip("torch")
import torch

from tuner.measure.timing import Reference

EXPECTED = torch.tensor([3.0, -4.0, 0.0, 0.0])  # its root mean square is 2.5


def test_an_error_is_a_share_of_the_value_and_of_the_whole():
    output = EXPECTED + torch.tensor([0.0, 0.65, 0.0, -0.25])
    assert Reference(EXPECTED).worst_error(output) == pytest.approx(0.1, rel=0.004)
    assert Reference(EXPECTED).worst_error(EXPECTED.bfloat16()) == 0.0


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_infinitely_wrong(wrong):
    output = EXPECTED.clone()
    output[2] = wrong
    assert Reference(EXPECTED).worst_error(output) == math.inf


def test_the_output_and_the_reference_stay():
    output, expected = EXPECTED + 1, EXPECTED.clone()
    Reference(expected).worst_error(output)
    assert torch.equal(output, EXPECTED + 1) and torch.equal(expected, EXPECTED)

"""The error tree: what its module draws is what its module defines."""

import re

import pytest

from tuner import errors
from tuner.errors import BadProblem, TunerError, did_you_mean, one_of
from tuner.problems.dtypes import parse_dtype


def drawn() -> list[tuple[int, str]]:
    """(depth, name) of every class in the drawing, from the top."""
    found = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^((?:[│ ]   )*(?:[├└]── )?)([A-Z]\w+)(?:  |$)", line)
        if match:
            found.append((len(match[1]) // 4, match[2]))
    return found


def defined(cls: type[TunerError], depth: int = 0) -> list[tuple[int, str]]:
    """The same of the classes, in the order in which the module defines them."""
    below = [c for c in cls.__subclasses__() if c.__module__ == errors.__name__]
    return [(depth, cls.__name__), *(pair for c in below for pair in defined(c, depth + 1))]


def test_the_drawn_tree_is_the_tree_of_classes():
    assert len(drawn()) > 30
    assert drawn() == defined(TunerError)


@pytest.mark.parametrize(
    ("value", "near"),
    [
        ("H21", {"H20", "H200"}),
        ("L40X", {"L40", "L40S"}),
        ("MI300X", {""}),
        ("Gaudi3", {""}),
        ("B3", {"B300"}),
        ("rtx 4091", {"RTX 4090"}),
    ],
)
def test_only_what_is_near_is_suggested(value, near):
    said = did_you_mean(value, ["H20", "H200", "L40", "L40S", "A30", "B300", "RTX 4090"])
    assert (said.removeprefix("; did you mean '").removesuffix("'?")) in near


def test_few_choices_are_listed_where_none_is_near():
    assert one_of("bla", ["gpu", "predict"]) == "; write gpu or predict"
    assert one_of("predikt", ["gpu", "predict"]) == "; did you mean 'predict'?"
    assert one_of("x", ["only"]) == "; write only"
    assert one_of("x", []) == one_of("x", map(str, range(100, 140))) == ""


@pytest.mark.parametrize(
    ("word", "dtype"),
    [
        ("w8a8_int8", "int8_w8a8"),
        ("fp8", "fp8_w8a8"),
        ("w8a8_fp8", "fp8_w8a8"),
        ("blockwise_int8", "int8_w8a8"),
        ("BF16", "bfloat16"),
        ("awq", "int4_w4a16"),
    ],
)
def test_the_engines_own_words_for_a_dtype_are_read(word, dtype):
    assert parse_dtype(word).value == dtype


def test_an_unknown_dtype_lists_the_known_ones():
    with pytest.raises(BadProblem, match="; write bfloat16, .* or int4_w4a16$"):
        parse_dtype("mxfp4x9")
    with pytest.raises(BadProblem, match="called fp8_w8a8 so"):
        parse_dtype("float8")

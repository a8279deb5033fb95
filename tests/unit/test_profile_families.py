"""Kernels by name: the table holds against engines' sources and public traces."""

import csv
from pathlib import Path

import pytest

from tuner.problems.registry import problem_names
from tuner.profile.families import _rows, _table, family_of, kernel_families, phase_told_by
from tuner.profile.profile import Phase

NAMES = Path(__file__).parents[1] / "data" / "profile" / "kernels_by_name.csv"


def public_names():
    with NAMES.open(newline="") as lines:
        return [tuple(row) for row in csv.reader(lines)][1:]


def test_kernels_of_public_traces_are_in_the_family_that_their_makers_name():
    wrong = [(name, family_of(name), family) for _, family, name in public_names()
             if family_of(name) != family]  # fmt: skip
    assert not wrong
    assert len(public_names()) > 60


def test_every_row_names_a_family_and_says_where_its_names_are_from():
    assert {row.family for row in _rows()} == set(kernel_families())
    assert all(row["source"] for row in _table()["row"])


def test_families_that_can_be_tuned_are_problems_of_this_tool():
    tuned = {kind for family in kernel_families().values() for kind in family.tuned_as}
    assert tuned == set(problem_names())
    makers = {row["name"]: row["maker"] for row in _table()["family"]}
    assert all(makers[f.name] == "triton" for f in kernel_families().values() if f.tuned_as)


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("_fwd_kernel", Phase.PREFILL),
        ("_fwd_kernel_stage2", Phase.DECODE),
        ("fused_moe_kernel", None),
        ("void unknown_to_everybody(int)", None),
    ],
)
def test_attention_kernels_tell_the_phase(name, phase):
    assert phase_told_by(name) is phase


def test_a_kernel_that_no_row_knows_has_no_family():
    assert family_of("void unknown_to_everybody<int>(int)") == ""

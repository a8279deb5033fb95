"""Which cases run on each commit, and which ones at night: `make test` and `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

T = TypeVar("T")


def only(kept: Iterable[T], cases: Iterable[T]) -> list[ParameterSet]:
    """Return the cases as parameters: those in `kept` run on each commit, the others are slow."""
    chosen, all_cases = list(kept), list(cases)
    unknown = [case for case in chosen if case not in all_cases]
    assert not unknown, f"{unknown} are no cases"
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[] if case in chosen else [pytest.mark.slow],
        )
        for case in all_cases
    ]

"""The points of a state update that a request asks for: numbers of sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.families.state_update.problem import BATCH_SIZES, Update
from tuner.problems.batch_sizes import SizeSelection
from tuner.problems.points import Problem


class StateSelection(SizeSelection):
    """Numbers of sequences."""

    part = Update.STATE
    default = BATCH_SIZES


def read_selection(problem: Problem, values: Mapping[str, Any]) -> StateSelection:
    """Read the field `batch_sizes`, which may be absent. Raises BadInput."""
    sizes = values.get("batch_sizes")
    return StateSelection(None if sizes is None else tuple(sizes))

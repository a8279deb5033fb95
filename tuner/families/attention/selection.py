"""The points of attention that a request asks for: the points of a workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tuner.families.attention.problem import Attention
from tuner.families.attention.workloads import (
    MAX_BATCH,
    MAX_CACHED,
    MAX_NEW,
    MAX_POINTS,
    MAX_WEIGHT,
    USES,
    Workload,
    WorkPoint,
    default_workload,
    parse_workload,
    read_points,
    usual_workload,
)
from tuner.problems.options import Field, Number, Record, Whole, WordOrRecords
from tuner.problems.points import Point, Problem


@dataclass(frozen=True)
class AttentionSelection:
    """A workload: the name of a use ("": the default one, or the recording's points), or the points
    themselves, because a worker does not have the user's file.
    """

    workload: str | tuple[WorkPoint, ...] = ""

    @property
    def given(self) -> bool:
        return bool(self.workload)

    def workload_of(self, problem: Attention) -> Workload | None:
        """The workload that was given, or None. Raises MalformedWorkload for an unknown use."""
        if not self.workload:
            return None
        if isinstance(self.workload, str):
            return default_workload(problem.phase, self.workload)
        return Workload("the workload", self.workload)

    def points(self, problem: Problem) -> frozenset[Point]:
        assert isinstance(problem, Attention)  # the registry pairs problems with selections
        work = self.workload_of(problem) or usual_workload(problem.phase)
        return frozenset(
            Point(at.batch_size, part, at.new_tokens, at.cached_tokens)
            for at in work.for_problem(problem).points
            for part in problem.parts
        )

    def as_json(self) -> dict[str, Any]:
        if isinstance(self.workload, str):
            return {"workload": self.workload or None}
        return {"workload": [asdict(point) for point in self.workload]}


def read_selection(problem: Problem, values: Mapping[str, Any]) -> AttentionSelection:
    """Read the field `workload`: a use, a list of points, or none. Raises MalformedWorkload."""
    assert isinstance(problem, Attention)  # the registry pairs problems with selections
    workload = values.get("workload") or ""
    if not isinstance(workload, str):
        workload = Workload("the workload", read_points(workload)).of(problem.phase).points
    chosen = AttentionSelection(workload)
    chosen.points(problem)  # refuses an unknown use, and one without points of this phase
    return chosen


def parse_workload_option(text: str) -> str | list[dict[str, Any]]:
    """The name of a use, or the points of the TOML file at a path. Raises MalformedWorkload."""
    workload = parse_workload(text)
    return workload if isinstance(workload, str) else [asdict(at) for at in workload.points]


_POINT = Record(
    "WorkPointIn",
    "One size to tune attention for.",
    (
        Field("batch_size", Whole(ge=1, le=MAX_BATCH)),
        Field(
            "new_tokens",
            Whole(ge=1, le=MAX_NEW),
            "Of the longest sequence; 1 means decode.",
            default=1,
        ),
        Field("cached_tokens", Whole(ge=0, le=MAX_CACHED), "Average per sequence.", default=0),
        Field(
            "weight",
            Number(gt=0, le=MAX_WEIGHT),
            "Weight of this size, relative to the others.",
            default=1.0,
        ),
    ),
)
WORKLOAD = WordOrRecords(USES, _POINT, MAX_POINTS, parse_workload_option)

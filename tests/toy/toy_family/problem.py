from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tuner.problems.points import Part, Point, Problem, parse_whole, read_fields

ROWS = (1, 16, 256)


class Kernel(Part):
    SCALE = "scale"


@dataclass(frozen=True)
class Scale:
    """Rows of `columns` float16 numbers, each multiplied by a factor."""

    columns: int
    family: ClassVar[str] = "toy_scale"
    parts: ClassVar[tuple[Kernel, ...]] = (Kernel.SCALE,)

    def spec(self) -> str:
        return f"{self.family}:columns={self.columns}"


def parse_scale(text: str) -> Scale:
    return Scale(parse_whole("columns", read_fields(text, ("columns",), required=1)["columns"]))


@dataclass(frozen=True)
class Rows:
    """The numbers of rows that a request asks for."""

    rows: tuple[int, ...] = ()

    @property
    def given(self) -> bool:
        return bool(self.rows)

    def points(self, problem: Problem) -> frozenset[Point]:
        return frozenset(Point(rows, Kernel.SCALE) for rows in self.rows or ROWS)

    def as_json(self) -> dict[str, Any]:
        return {"rows": list(self.rows)}


def read_rows(problem: Problem, values: Mapping[str, Any]) -> Rows:
    return Rows(tuple(sorted(values.get("rows") or ())))

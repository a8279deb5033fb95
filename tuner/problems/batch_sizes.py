"""Batch sizes as users write them. Several families select their points by batch size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tuner.errors import BadInput
from tuner.problems.points import Part, Point, Problem

MAX_BATCH_SIZE = (1 << 20) - 1


def parse_batch_sizes(text: str) -> list[int]:
    """Read `1,2,4`: whole numbers of at least 1. Raises BadInput."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 1 << 20 for part in parts):
        raise BadInput(f"batch sizes are whole numbers from 1, like 1,2,4: not {text!r}")
    return sorted({int(part) for part in parts})


def checked_sizes(sizes: Iterable[int]) -> tuple[int, ...]:
    """The sizes in order, each once. Raises BadInput for impossible ones and for none."""
    known = tuple(sizes)
    if not known or not all(0 < size <= MAX_BATCH_SIZE for size in known):
        raise BadInput(f"batch sizes are whole numbers from 1, like 1,2,4: not {list(known)}")
    return tuple(sorted(set(known)))


@dataclass(frozen=True)
class SizeSelection:
    """Batch sizes of problems with a single part. Raises BadInput for impossible values.

    A family derives a class that says its part and its default sizes.
    """

    batch_sizes: tuple[int, ...] | None = None  # None: the default sizes, or the recording's

    part: ClassVar[Part]
    default: ClassVar[tuple[int, ...]]

    def __post_init__(self) -> None:
        if self.batch_sizes is not None:
            object.__setattr__(self, "batch_sizes", checked_sizes(self.batch_sizes))

    @classmethod
    def read(cls, problem: Problem, values: Mapping[str, Any]) -> SizeSelection:
        """Read the field `batch_sizes`, which may be absent. Raises BadInput."""
        sizes = values.get("batch_sizes")
        return cls(None if sizes is None else tuple(sizes))

    @property
    def given(self) -> bool:
        return self.batch_sizes is not None

    def points(self, problem: Problem) -> frozenset[Point]:
        return frozenset(Point(size, self.part) for size in self.batch_sizes or self.default)

    def as_json(self) -> dict[str, Any]:
        return {"batch_sizes": None if self.batch_sizes is None else list(self.batch_sizes)}

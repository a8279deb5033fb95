"""What the engine runs without this tuner at each point, and what a prediction leaves as it is.

The makers of an engine measured the entries of the files that they ship for a card. A prediction
does not replace an entry near its size. Only --effort exhaustive predicts there at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tuner.problems.points import Config, Point
from tuner.problems.results import Compiled, Entry, Incumbent, MeasureKind, Status
from tuner.tuning.request import Effort, Request

# A file's entry is taken to be tuned for sizes up to this many times its key, and down to this
# part of it. Some shipped files begin at 2,048: their first entry serves all smaller sizes.
NEAR = 2
KEPT = "the engine ships an entry tuned on this card; a prediction keeps it"


def tuned_near(size: int, keys: Iterable[int]) -> bool:
    """Whether a file was tuned for about a size: one of its keys is near."""
    return any(size <= NEAR * key and key <= NEAR * size for key in keys)


B = TypeVar("B", bound="Baselines")


@dataclass(frozen=True)
class Baselines:
    """What the engine runs at each point that a file must hold.

    An exported file must hold them all, because with a file the engine no longer uses its default,
    and picks the entry of the nearest size.
    """

    configs: Mapping[Point, Mapping[str, Config]]  # "default", and "shipped" where there is one
    tuned_near: frozenset[Point]  # where the shipped entry was tuned for a batch of about this size
    uncompiled: bool = True  # whether a prediction keeps shipped entries without compiling them

    def pass_over(
        self: B, request: Request, points: Sequence[Point]
    ) -> tuple[list[Entry], tuple[Point, ...], B]:
        """The shipped entries of the points at which a prediction tries nothing, the other points,
        and their baselines. These are empty if there are no other points.
        """
        predicts = request.source.kind is MeasureKind.PREDICT
        kept: list[Entry] = []
        if predicts and self.uncompiled and request.effort is not Effort.EXHAUSTIVE:
            kept = [_shipped(point, self.configs[point]) for point in points if self._ships(point)]
        known = {entry.point for entry in kept}
        left = tuple(point for point in points if point not in known)
        configs = {p: c for p, c in self.configs.items() if p not in known} if left else {}
        return kept, left, replace(self, configs=configs)

    def _ships(self, point: Point) -> bool:
        return point in self.tuned_near and "shipped" in self.configs[point]


def _shipped(point: Point, configs: Mapping[str, Config]) -> Entry:
    untried = {name: Incumbent(config, Status.INCUMBENT) for name, config in configs.items()}
    return Entry(
        point=point,
        config=configs["shipped"],
        status=Status.INCUMBENT,
        median_us=None,
        compiled=Compiled(Status.INCUMBENT),
        incumbents=untried,
        reason=KEPT,
    )

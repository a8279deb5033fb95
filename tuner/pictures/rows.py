"""Turn winners into rows: the engine's time, the tuned time, and the roofline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tuner.devices.table import Device
from tuner.problems.points import ChartPosition, Problem, title_of
from tuner.problems.registry import family_of
from tuner.problems.results import Entry, Status, Winner, is_shipped
from tuner.tuning.gains import OWN, closing_line, reference


class Origin(str, Enum):
    """The source of an entry. The weakest comes last."""

    MEASURED = "measured"  # on a GPU
    SHIPPED = "shipped"  # in the engine's own file
    DEFAULT = "default"  # the engine's choice without a file
    OWN = "the engine's own"  # of its file or without it: nothing says which, or how fast it is
    COPIED = "as at the nearest size"  # the engine's own cannot run
    PREDICTED = "predicted"  # by a model of the GPU


@dataclass(frozen=True)
class PictureRow:
    """A place of a problem's picture. Times are microseconds; None: nobody knows it."""

    place: ChartPosition
    size: str  # for people: "M=8"
    engine_us: float | None
    engine_measured: bool
    tuned_us: float | None
    roofline_us: float
    origin: Origin
    over: str = ""  # the name of the incumbent whose time `engine_us` is
    without_us: bool = False  # whether a server runs that incumbent without this program

    @property
    def timed(self) -> bool:
        """Say whether any time is known here; there is none at sizes that were not tuned."""
        return self.engine_us is not None or self.tuned_us is not None

    @property
    def gain(self) -> float | None:
        """Return how many times as fast as the incumbent `over` it is."""
        if self.engine_us is None or not self.tuned_us:
            return None
        return self.engine_us / self.tuned_us

    def as_json(self) -> dict[str, Any]:
        return {
            "chart": self.place.chart,
            "x": self.place.x,
            "size": self.size,
            "engine_us": self.engine_us,
            "over": self.over or None,
            "over_without_us": self.without_us,
            "tuned_us": self.tuned_us,
            "roofline_us": self.roofline_us,
            "gain": self.gain,
            "origin": self.origin.value,
        }


def rows_of(problem: Problem, winners: Iterable[Winner], device: Device) -> list[PictureRow]:
    """Return the rows of one problem's winners, by chart and then by x."""
    family = family_of(problem)
    order = {part: at for at, part in enumerate(problem.parts)}
    placed: dict[ChartPosition, list[Entry]] = {}
    for winner in sorted(winners, key=lambda w: (order[w.entry.point.part], w.entry.point)):
        place = family.place(problem, winner.entry.point)
        placed.setdefault(place, []).append(winner.entry)
    charts = list(dict.fromkeys(place.chart for place in placed))
    # A backend's time may be for all parts of a size. A place with some of them has no such time.
    every = (entry for entries in placed.values() for entry in entries)
    whole = {entry.point.size for entry in every if reference(entry).median_us == 0}

    def row(place: ChartPosition, entries: Sequence[Entry]) -> PictureRow:
        over = [reference(entry) for entry in entries]
        apart = entries[0].point.size in whole and len(entries) < len(problem.parts)
        return PictureRow(
            place=place,
            size=entries[0].point.size,
            engine_us=None if apart else _sum([one.median_us for one in over]),
            engine_measured=all(
                one.incumbent is not None and one.incumbent.status is Status.OK for one in over
            ),
            tuned_us=_sum([entry.median_us for entry in entries]),
            roofline_us=sum(family.least_us(problem, entry.point, device) for entry in entries),
            origin=max((origin_of(entry) for entry in entries), key=list(Origin).index),
            over=over[0].name if len({one.name for one in over}) == 1 else "",
            without_us=all(one.without_us for one in over),
        )

    return [
        row(place, entries)
        for place, entries in sorted(
            placed.items(), key=lambda p: (charts.index(p[0].chart), p[0].x)
        )
    ]


def origin_of(entry: Entry) -> Origin:
    """Return the source of an entry; if a prediction keeps the engine's choice, it is
    the engine's.
    """
    if is_shipped(entry):
        return Origin.SHIPPED
    if entry.status is Status.OK:
        return Origin.MEASURED
    if entry.status is Status.COPIED:
        return Origin.COPIED
    if entry.status is Status.INCUMBENT and not entry.incumbents:
        return Origin.OWN
    default = entry.incumbents.get("default")
    kept = default is not None and default.config == entry.config
    return Origin.DEFAULT if kept or entry.status is not Status.PREDICTED else Origin.PREDICTED


def _sum(times: Sequence[float | None]) -> float | None:
    known = [one for one in times if one is not None]
    return sum(known) if len(known) == len(times) else None


def over_title(rows: Sequence[PictureRow]) -> str:
    """Name the incumbent of some rows' gains, in few words."""
    names = {row.over for row in rows}
    (name,) = names if len(names) == 1 else ("",)
    if not name:
        return "engine's choice"
    return f"Triton's {name}" if name in OWN else title_of(name)


def summary_line(winners: Iterable[Winner]) -> str:
    """Say the gains of one problem's winners in one sentence, as `tuner tune` does."""
    entries = [winner.entry for winner in winners]
    if line := closing_line(entries):
        return line
    if entries and all(entry.status is Status.INCUMBENT for entry in entries):
        shipped = "shipped entries" if any(map(is_shipped, entries)) else "own configurations"
        return f"The engine's {shipped} were kept"
    return "No size has both the engine's time and a tuned time"


def by_problem(winners: Iterable[Winner]) -> Mapping[Problem, list[Winner]]:
    """Group the winners by problem, in the order of the problems' texts."""
    found: dict[Problem, list[Winner]] = {}
    for winner in winners:
        found.setdefault(winner.problem, []).append(winner)
    return {problem: found[problem] for problem in sorted(found, key=lambda one: one.spec())}

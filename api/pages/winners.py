"""Winners as rows and as lines of charts: part, size, and the engine's own kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

from markupsafe import Markup

from tuner.draw.chart import Chart, Series, Spot, draw_chart
from tuner.draw.shapes import Colour, Drawing, Glyph, LogScale, svg_text
from tuner.problems.points import UNKNOWN_SERVER, ServerSettings, read_server, title_of
from tuner.problems.registry import parts
from tuner.tuning.gains import NOT_MEASURED, OWN, WITHOUT_US, mean_gain


@dataclass(frozen=True)
class Times:
    """A line of a chart: times in microseconds by the label of a size."""

    name: str
    by_size: Mapping[str, float]
    colour: Colour
    glyph: Glyph
    dashed: bool = False
    key: str = ""  # by which a page's script finds it


@dataclass(frozen=True)
class PartChart:
    """The chart of a part. A page's script draws new times with `places` and `scale`."""

    part: str
    drawing: Drawing
    places: Mapping[str, float]  # where each size is
    scale: LogScale  # of the times

    @property
    def svg(self) -> Markup:
        return Markup(svg_text(self.drawing, inline=True))  # noqa: S704 - its texts are escaped


def chart_of(part: str, lines: Sequence[Times], below: float = 1.0) -> PartChart | None:
    """Return the chart of a part's lines; None without any time.

    There is room for times that are shorter by the factor `below`.
    """
    drawn = [line for line in lines if line.by_size]
    sizes = list(dict.fromkeys(size for line in drawn for size in line.by_size))
    if not sizes:
        return None
    numbers = all(size.isdigit() and int(size) for size in sizes)
    # Sizes that are no numbers stand at equal distances: the axis is logarithmic.
    xs = {size: float(size) if numbers else 2.0**at for at, size in enumerate(sizes)}
    shortest = min(time for line in drawn for time in line.by_size.values())
    drawing = draw_chart(
        Chart(
            title=f"{part}, times by size",
            x_label="batch size" if numbers else "sequences × new tokens + cached tokens",
            y_label="µs, lower is better",
            series=tuple(_series(line, xs) for line in drawn),
            x_names={x: size for size, x in xs.items()},
            reach=(shortest / below,),
        )
    )
    assert drawing.axes  # of one chart
    across, up = drawing.axes
    return PartChart(part, drawing, {size: across.at(x) for size, x in xs.items()}, up)


def _series(line: Times, xs: Mapping[str, float]) -> Series:
    spots = (
        Spot(xs[size], time, line.glyph, f"{line.name}, {size}: {time:,.4g} µs")
        for size, time in line.by_size.items()
    )
    ordered = tuple(sorted(spots, key=lambda spot: spot.x))
    return Series(line.name, line.colour, ordered, line.dashed, line.key)


_ROOM = 4.0  # a run may find times that are shorter by this factor before its chart is drawn anew
_FAR = 50.0  # a roofline that lies further below a time is not drawn: it would flatten the rest


@dataclass(frozen=True)
class WinnerRow:
    """A winner of the API's answers."""

    number: int  # among the winners of its environment
    winner: Mapping[str, Any]
    whole: bool = False  # the incumbent of the gain runs all parts of the size as one kernel

    @property
    def part(self) -> str:
        return str(self.winner.get("gemm") or self.winner.get("part") or "")

    @property
    def size(self) -> str:
        """Return the batch size, and the tokens of attention: `8`, or `4×512+8192`."""
        return size_of(self.winner)

    @property
    def running(self) -> str:
        """Return the incumbent that gains are over: see `tuner.tuning.gains.reference`."""
        incumbents, name = self.winner["incumbents"], self.winner.get("without_us") or ""
        found = incumbents.get(name)
        if found is not None and (found["median_us"] is not None or name in OWN):
            return str(name)
        return next((own for own in OWN if own in incumbents), "")

    @property
    def over_without_us(self) -> bool:
        """Say whether gains are over the kernel that a server runs without this program."""
        return bool(self.running) and self.running == self.winner.get("without_us")

    @property
    def alone_us(self) -> float | None:
        """Return the time of the kernel that the engine would run."""
        return self.time_of(self.running)

    def time_of(self, incumbent: str) -> float | None:
        found = self.winner["incumbents"].get(incumbent)
        return None if found is None else found["median_us"]

    @property
    def speedup(self) -> float | None:
        alone, mine = self.alone_us, self.winner["median_us"]
        return alone / mine if alone and mine and not self.whole else None

    @property
    def roofline_share(self) -> float | None:
        """Return the roofline's time over this time: 1 is as fast as the device can be."""
        mine = self.winner["median_us"]
        return self.winner["least_us"] / mine if mine else None

    @property
    def bar(self) -> float:
        """Return the speed-up as the length of a bar, 0 to 100: twice as fast is 50."""
        return 0.0 if not self.speedup else max(0.0, min(100.0, 100 * (1 - 1 / self.speedup)))


def size_of(point: Mapping[str, Any]) -> str:
    """Return a point's size, as Entry.size."""
    if point.get("new_tokens") is None:
        return str(point["batch_size"])
    return f"{point['batch_size']}×{point['new_tokens']}+{point['cached_tokens']}"


def entries_of(winners: Sequence[Mapping[str, Any]]) -> list[WinnerRow]:
    """Return winners as entries. If a point has several, the more important entry comes later."""
    found = [WinnerRow(number, winner) for number, winner in enumerate(winners)]
    whole = {one.size for one in found if one.alone_us == 0}
    return [replace(one, whole=one.size in whole) for one in found]


def entries_so_far(progress: Mapping[str, Any]) -> list[WinnerRow]:
    """Return the points of a running job: the best time of each, beside the incumbents' times."""
    best = {one["point"]: one for one in progress["best"]}
    planned = sorted(progress["incumbents"], key=_place)
    return [
        WinnerRow(
            number,
            {
                **one,
                "median_us": best.get(one["point"], {}).get("best_us"),
                "incumbents": {name: {"median_us": us} for name, us in one["times_us"].items()},
            },
        )
        for number, one in enumerate(planned)
    ]


def _place(point: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the place of a winner: by size, then by part in the order of launch."""
    sizes = [point["batch_size"], point.get("new_tokens") or 0, point.get("cached_tokens") or 0]
    return (*sizes, [part.value for part in parts()].index(point.get("gemm") or point["part"]))


def speedup_of(entries: Sequence[WinnerRow]) -> float | None:
    """Return the geometric mean over the sizes whose parts all have both times; None if none."""
    by_size: dict[str, list[WinnerRow]] = {}
    for one in entries:
        by_size.setdefault(one.size, []).append(one)
    ratios = []
    for some in by_size.values():
        alone = [one.alone_us for one in some if one.alone_us is not None]
        mine = [one.winner["median_us"] for one in some if one.winner["median_us"]]
        if len(alone) == len(mine) == len(some):
            ratios.append(sum(alone) / sum(mine))
    return mean_gain(ratios)


def over_of(entries: Sequence[WinnerRow]) -> str:
    """Return the incumbent that the gains of some entries are over, in words."""
    timed = [one for one in entries if one.running]
    names = dict.fromkeys(one.running for one in timed)
    said = " and ".join(f"Triton's {n}" if n in OWN else title_of(n) for n in names)
    if not timed or all(one.over_without_us for one in timed):
        return f"{WITHOUT_US}: {said}" if said else WITHOUT_US
    return f"{said}; {WITHOUT_US} was {NOT_MEASURED}"


def server_of(entries: Sequence[WinnerRow]) -> ServerSettings:
    """Return the settings of the servers that gains are of, as far as they are known."""
    return next(filter(None, (read_server(one.winner) for one in entries)), UNKNOWN_SERVER)


def charts_of(entries: Sequence[WinnerRow], running: bool = False) -> list[PartChart]:
    """Return a chart of times by size for each part.

    While a job runs, its charts show the best time so far, and leave room below for shorter times.
    """
    charts = []
    incumbents = _incumbents(entries)
    for part in dict.fromkeys(one.part for one in entries):
        mine = [one for one in entries if one.part == part]
        lines = [
            Times(words, {one.size: us for one in mine if (us := one.time_of(name))}, *look)
            for (words, name), look in zip(incumbents, _looks(), strict=False)
        ]
        tuned = {one.size: one.winner["median_us"] for one in mine if one.winner["median_us"]}
        name = "best so far" if running else "tuned"
        lines.append(Times(name, tuned, Colour.SECOND, Glyph.DISC, key="tuned" if running else ""))
        if not running:
            least = _rooflines(mine)
            glyph = Glyph.NONE if len(least) > 1 else Glyph.RING  # one size makes no line
            lines.append(Times("roofline", least, Colour.THIRD, glyph, dashed=True))
        if chart := chart_of(part, lines, _ROOM if running else 1.0):
            charts.append(chart)
    return charts


def _looks() -> Iterator[tuple[Colour, Glyph]]:
    """Yield colours and marks for lines beside the tuned line; twelve differ from each other."""
    colours = cycle((Colour.FIRST, Colour.FOURTH, Colour.FIFTH))
    return zip(colours, cycle((Glyph.SQUARE, Glyph.TRIANGLE, Glyph.DIAMOND, Glyph.RING)))


def _incumbents(entries: Sequence[WinnerRow]) -> list[tuple[str, str]]:
    """Return the lines of a chart beside the tuned line: words, and the incumbent's name."""
    known = (("engine's default", "default"), ("engine's file", "shipped"))
    others = {name for one in entries for name in one.winner["incumbents"]} - set(OWN)
    return [*known, *((title_of(name), name) for name in sorted(others))]


def _rooflines(entries: Sequence[WinnerRow]) -> dict[str, float]:
    """Return the least time of each size, unless some mislead, as they are far below the times."""
    near = all(
        one.winner["least_us"] * _FAR > one.winner["median_us"]
        for one in entries
        if one.winner["median_us"]
    )
    return {one.size: one.winner["least_us"] for one in entries} if near else {}

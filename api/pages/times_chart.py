"""Charts of times by size. The tables beside them have the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tuner.draw.chart import Chart, Series, Spot, draw_chart
from tuner.draw.scale import LogScale
from tuner.draw.shapes import Colour, Drawing, Glyph
from tuner.draw.svg import svg_text


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
    """The chart of a part's lines; None without any time.

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

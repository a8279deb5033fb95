"""Draw a chart of lines on logarithmic axes above a strip of gains; and rows of values with bars.

A chart is as wide as a phone's page, so that its text is never reduced there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tuner.draw.shapes import (
    Anchor,
    Box,
    Colour,
    Drawing,
    Glyph,
    Line,
    LogScale,
    Mark,
    Shape,
    Text,
    cut_text,
    log_scale,
    number_text,
    text_width,
)
from tuner.render import gain_text

WIDTH = 360.0
_LEFT, _RIGHT = 50.0, 14.0  # the y axis' numbers; half of the last number of the x axis
_PLOT, _STRIP = 180.0, 62.0  # heights
_SMALL = 11.0  # size of numbers and legends


@dataclass(frozen=True)
class Spot:
    """A point of a line."""

    x: float
    y: float
    glyph: Glyph = Glyph.DISC
    tip: str = ""


@dataclass(frozen=True)
class Series:
    """A line with its name. `dashed` is for lines that nobody measured."""

    name: str
    colour: Colour
    spots: tuple[Spot, ...]
    dashed: bool = False
    key: str = ""  # by which a page's script finds its line and its marks


@dataclass(frozen=True)
class Chart:
    """The contents of a chart. All x and y are above zero."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    gains: Mapping[float, float] = field(default_factory=dict)  # by x; above 1 is better
    glyphs: Mapping[Glyph, str] = field(default_factory=dict)  # the meanings of the forms of points
    # Text for values of the x axis. Empty: round numbers, which need not be points of a line.
    x_names: Mapping[float, str] = field(default_factory=dict)
    reach: tuple[float, ...] = ()  # values of y that the axis holds too


def draw_chart(chart: Chart) -> Drawing:
    """Return the chart as shapes."""
    shapes: list[Shape] = [Text(0, 16, cut_text(chart.title, 13, WIDTH), 13, bold=True)]
    legend, top = _legend(chart, 36)
    spots = [spot for one in chart.series for spot in one.spots]
    x = log_scale([*(s.x for s in spots), *chart.gains], _LEFT + 6, WIDTH - _RIGHT, room=1.0)
    y = log_scale([*(s.y for s in spots), *chart.reach], top + 22 + _PLOT, top + 22)
    shapes += [*legend, Text(0, top + 10, chart.y_label, _SMALL, Colour.MUTED)]
    shapes += _y_axis(y)
    for one in chart.series:
        shapes += _line(one, x, y)
    bottom = y.start
    if chart.gains:
        shapes += _strip(chart.gains, x, bottom + 14)
        bottom += 14 + _STRIP
    shapes += _x_axis(chart, x, bottom)
    label = f"{chart.title}: {', '.join(one.name for one in chart.series)}"
    return Drawing(WIDTH, bottom + 36, tuple(shapes), label, (x, y))


def _legend(chart: Chart, top: float) -> tuple[list[Shape], float]:
    """Return the names of lines, if there are several, and of glyphs, in rows; and the y below
    them.
    """
    items: list[tuple[str, list[Shape]]] = []
    for one in chart.series if len(chart.series) > 1 else ():
        sample: list[Shape] = [Line(((0, 0), (20, 0)), one.colour, 2, one.dashed)]
        if not chart.glyphs and one.spots and one.spots[0].glyph is not Glyph.NONE:
            sample.append(Mark(10, 0, one.spots[0].glyph, one.colour))
        items.append((one.name, sample))
    for glyph, word in chart.glyphs.items():
        items.append((word, [Mark(14, 0, glyph, Colour.INK)]))
    shapes: list[Shape] = []
    x, y = 0.0, top
    for name, sample in items:
        needed = 26 + text_width(name, _SMALL)
        if x and x + needed > WIDTH:
            x, y = 0.0, y + 17
        for shape in sample:
            shapes.append(_at(shape, x, y - 4))
        shapes.append(Text(x + 26, y, name, _SMALL))
        x += needed + 10
    return shapes, y + 10 if items else top - 12


def _at(shape: Shape, x: float, y: float) -> Shape:
    if isinstance(shape, Line):
        points = tuple((px + x, py + y) for px, py in shape.points)
        return Line(points, shape.colour, shape.width, shape.dashed)
    assert isinstance(shape, Mark)
    return Mark(shape.x + x, shape.y + y, shape.glyph, shape.colour)


def _y_axis(y: LogScale) -> list[Shape]:
    shapes: list[Shape] = []
    for value in y.ticks():
        at = y.at(value)
        shapes.append(Line(((_LEFT, at), (WIDTH, at)), Colour.RULE))
        number = Text(_LEFT - 6, at + 4, number_text(value), _SMALL, Colour.MUTED, Anchor.END)
        shapes.append(number)
    return shapes


def _line(one: Series, x: LogScale, y: LogScale) -> list[Shape]:
    places = [(x.at(spot.x), y.at(spot.y)) for spot in one.spots]
    shapes: list[Shape] = []
    if len(places) > 1:
        width = 1.5 if one.dashed else 2
        shapes.append(Line(tuple(places), one.colour, width, one.dashed, one.key))
    for spot, (left, top) in zip(one.spots, places, strict=True):
        if spot.glyph is not Glyph.NONE:
            shapes.append(Mark(left, top, spot.glyph, one.colour, spot.tip, one.key))
    return shapes


def _strip(gains: Mapping[float, float], x: LogScale, top: float) -> list[Shape]:
    """Draw a bar for each gain, from 1 upwards, or downwards if the gain is a loss."""
    high, low = max(1.02, *gains.values()), min(1.0, *gains.values())
    bottom, room = top + _STRIP, _STRIP - 16  # 16 pixels for the number of the highest bar

    def at(gain: float) -> float:
        return bottom - (gain - low) / (high - low) * room

    shapes: list[Shape] = [
        Text(0, top + 28, "gain", _SMALL, Colour.MUTED),
        Text(_LEFT - 6, at(1) + 4, "1x", _SMALL, Colour.MUTED, Anchor.END),
        Line(((_LEFT, at(1)), (WIDTH, at(1))), Colour.MUTED),
    ]
    for value, gain in gains.items():
        left, ends = x.at(value), sorted((at(1), at(gain)))
        colour = Colour.SECOND if gain >= 1 else Colour.FIRST
        shapes.append(Box(left - 3, ends[0], 6, max(ends[1] - ends[0], 0.5), colour))
    notable = sorted(gains, key=lambda v: (v != max(gains, key=lambda g: gains[g]), v))
    words_of = {value: gain_text(gain) for value, gain in gains.items()}
    for value, middle in _apart(notable, x, words_of, 10, gap=2).items():
        words = words_of[value]
        reach = text_width(words, 10) / 2 + 3  # a text stands above all bars that it would touch
        below = [gains[v] for v in gains if abs(x.at(v) - x.at(value)) < reach]
        height = at(max(1.0, *below)) - 4
        shapes.append(Text(middle, height, words, 10, anchor=Anchor.MIDDLE))
    return shapes


def _x_axis(chart: Chart, x: LogScale, bottom: float) -> list[Shape]:
    shapes: list[Shape] = [Line(((_LEFT, bottom), (WIDTH, bottom)), Colour.MUTED)]
    names = chart.x_names or {value: number_text(value) for value in x.ticks()}
    ends = [min(names), max(names)] if chart.x_names else []
    order = [*ends, *(value for value in names if value not in ends)]
    for value in names:
        at = x.at(value)
        shapes.append(Line(((at, bottom), (at, bottom + 4)), Colour.MUTED))
    for value, at in _apart(order, x, names, _SMALL, gap=3).items():
        words = names[value]
        shapes.append(Text(at, bottom + 16, words, _SMALL, Colour.MUTED, Anchor.MIDDLE))
    middle = (_LEFT + WIDTH) / 2
    shapes.append(Text(middle, bottom + 32, chart.x_label, _SMALL, Colour.MUTED, Anchor.MIDDLE))
    return shapes


def _apart(
    values: Iterable[float], x: LogScale, names: Mapping[float, str], size: float, gap: float
) -> dict[float, float]:
    """Return the values whose texts do not touch earlier texts, with the middles of their texts.

    No text leaves the picture.
    """
    kept: dict[float, float] = {}
    wide = {value: text_width(words, size) for value, words in names.items()}
    for value in values:
        half = wide[value] / 2
        middle = max(half, min(x.at(value), WIDTH - half))
        if all(abs(middle - at) >= half + wide[one] / 2 + gap for one, at in kept.items()):
            kept[value] = middle
    return kept


_ROW, _SECOND_LINE, _TOP = 34.0, 16.0, 26.0
_GAIN = 54.0  # width of the column of gains


@dataclass(frozen=True)
class Row:
    """A quantity with its values as text; `gain` is above 1 if it became better."""

    name: str
    values: str
    gain: float | None = None


def draw_rows(title: str, rows: Sequence[Row]) -> Drawing:
    """Draw the rows below a title. The longest bar is the greatest gain or loss."""
    longest = max((_length(row.gain) for row in rows if row.gain), default=0.0)
    edge = WIDTH - (_GAIN if longest else 0)
    # Values stand beside the names if there is room for all of them, else below.
    below = any(text_width(f"{row.name}  {row.values}", 12) > edge for row in rows)
    height = _ROW + (_SECOND_LINE if below else 0)
    shapes: list[Shape] = [Text(0, 16, cut_text(title, 13, WIDTH), 13, bold=True)]
    for at, row in enumerate(rows):
        y = _TOP + at * height + 14
        shapes.append(Text(0, y, cut_text(row.name, 12, edge if below else WIDTH), 12))
        if below:
            y += _SECOND_LINE
            shapes.append(Text(0, y, row.values, 12, Colour.MUTED))
        else:
            shapes.append(Text(edge, y, row.values, 12, Colour.MUTED, Anchor.END))
        if row.gain is not None:
            shapes += _bar(row.gain, y, longest)
    said = ", ".join(f"{row.name} {row.values}" for row in rows)
    return Drawing(WIDTH, _TOP + height * len(rows), tuple(shapes), f"{title}: {said}")


def _bar(gain: float, y: float, longest: float) -> list[Shape]:
    colour = Colour.SECOND if gain >= 1 else Colour.FIRST
    return [
        Text(WIDTH, y, gain_text(gain), 13, colour, Anchor.END, bold=True),
        Box(0, y + 6, WIDTH, 5, Colour.RULE),
        Box(0, y + 6, WIDTH * _length(gain) / (longest or 1.0), 5, colour),
    ]


def _length(gain: float | None) -> float:
    return max(gain, 1 / gain) - 1 if gain else 0.0

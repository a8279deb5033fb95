"""Rows of values at one load, with a bar for what each has gained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.draw.chart import WIDTH
from tuner.draw.shapes import Anchor, Box, Colour, Drawing, Shape, Text, cut_text, text_width
from tuner.render import gain_text

_ROW, _SECOND_LINE, _TOP = 34.0, 16.0, 26.0
_GAIN = 54.0  # width of the column of gains


@dataclass(frozen=True)
class Row:
    """A quantity with its values as text; `gain` is above 1 where it became better."""

    name: str
    values: str
    gain: float | None = None


def draw_rows(title: str, rows: Sequence[Row]) -> Drawing:
    """The rows below a title. The longest bar is the greatest gain or loss."""
    longest = max((_length(row.gain) for row in rows if row.gain), default=0.0)
    edge = WIDTH - (_GAIN if longest else 0)
    # Values stand beside the names where there is room for all of them, else below.
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

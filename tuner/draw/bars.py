"""Rows of values at one load, with a bar for what each has gained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.draw.chart import WIDTH
from tuner.draw.shapes import Anchor, Box, Colour, Drawing, Shape, Text, cut_text
from tuner.render import gain_text

_ROW, _TOP = 34.0, 26.0
_GAIN = 54.0  # width of the column of gains


@dataclass(frozen=True)
class Row:
    """A quantity with its values as text; `gain` is above 1 where it became better."""

    name: str
    values: str
    gain: float | None = None


def draw_rows(title: str, rows: Sequence[Row]) -> Drawing:
    """The rows below a title. The longest bar is the greatest gain or loss."""
    shapes: list[Shape] = [Text(0, 16, cut_text(title, 13, WIDTH), 13, bold=True)]
    longest = max((_length(row.gain) for row in rows if row.gain), default=0.0)
    edge = WIDTH - (_GAIN if longest else 0)
    for at, row in enumerate(rows):
        y = _TOP + at * _ROW
        shapes.append(Text(0, y + 14, row.name, 12))
        shapes.append(Text(edge, y + 14, row.values, 12, Colour.MUTED, Anchor.END))
        if row.gain is None:
            continue
        colour = Colour.SECOND if row.gain >= 1 else Colour.FIRST
        words = gain_text(row.gain)
        shapes.append(Text(WIDTH, y + 14, words, 13, colour, Anchor.END, bold=True))
        shapes.append(Box(0, y + 20, WIDTH, 5, Colour.RULE))
        shapes.append(Box(0, y + 20, WIDTH * _length(row.gain) / (longest or 1.0), 5, colour))
    said = ", ".join(f"{row.name} {row.values}" for row in rows)
    return Drawing(WIDTH, _TOP + _ROW * len(rows), tuple(shapes), f"{title}: {said}")


def _length(gain: float | None) -> float:
    return max(gain, 1 / gain) - 1 if gain else 0.0

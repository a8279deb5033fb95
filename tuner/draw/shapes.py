"""Define the shapes of a picture, its axes, and the picture as SVG or on a page of HTML.

Lengths are pixels at its natural size. A page is light or dark as the system is. It stands alone:
it loads no script, style sheet, picture or font.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from html import escape

_STEPS = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0))
_FEWEST = 3  # ticks of an axis, if the finest steps give as many


@dataclass(frozen=True)
class LogScale:
    """Maps values from `low` to `high` (both above zero) to pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the pixel of a value above zero."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return round values on the axis: as few as say enough."""
        for steps in (*_STEPS, [n / 10 for n in range(10, 100)]):
            found = self._ticks(steps)
            if len(found) >= _FEWEST:
                break
        every = math.ceil(len(found) / 7)
        return found[::every]

    def _ticks(self, steps: Sequence[float]) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        values = (step * 10.0**power for power in range(first, last + 1) for step in steps)
        return [value for value in values if self.low <= value <= self.high]


def log_scale(values: Iterable[float], start: float, end: float, room: float = 1.12) -> LogScale:
    """Return an axis that holds all values, with a factor of `room` on both sides."""
    some = list(values)
    low, high = min(some) / room, max(some) * room
    if high / low < 1.5:  # one value, or values that are nearly equal
        low, high = low / 1.3, high * 1.3
    return LogScale(low, high, start, end)


def number_text(value: float) -> str:
    """Write a tick's number: 0.25, 7.5, 1024, 20k, 3M."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 10 * unit or (unit > 1e3 and value >= unit):
            return f"{value / unit:.3g}{name}"
    return f"{value:.4g}"


class Colour(Enum):
    """A colour by its purpose: (on a light ground, on a dark ground).

    Lines have the colours of Okabe and Ito, which people with any colour vision tell apart
    (https://jfly.uni-koeln.de/color/). Marks and dashes differ too, so no line needs its colour.
    """

    GROUND = ("#ffffff", "#14181d")
    INK = ("#1b1f24", "#e8ebef")
    MUTED = ("#5b6470", "#9aa5b1")
    RULE = ("#dfe3e8", "#303841")
    FIRST = ("#b94e00", "#e69f00")  # vermilion, darker for text; orange
    SECOND = ("#0072b2", "#56b4e9")  # blue; sky blue
    THIRD = ("#5b6470", "#9aa5b1")  # a limit, which was not measured
    FOURTH = ("#00785a", "#009e73")  # bluish green, darker for text
    FIFTH = ("#a8487f", "#cc79a7")  # reddish purple, darker for text


class Glyph(Enum):
    """The form of a point."""

    DISC = "disc"
    RING = "ring"
    SQUARE = "square"
    TRIANGLE = "triangle"
    DIAMOND = "diamond"
    NONE = "none"


class Anchor(Enum):
    """The side of a text that its x is at. The values are SVG's."""

    START = "start"
    MIDDLE = "middle"
    END = "end"


@dataclass(frozen=True)
class Line:
    """Straight lines from point to point."""

    points: tuple[tuple[float, float], ...]
    colour: Colour
    width: float = 1.0
    dashed: bool = False
    key: str = ""  # by which a page's script finds it


@dataclass(frozen=True)
class Box:
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    colour: Colour


@dataclass(frozen=True)
class Mark:
    """A point of a line."""

    x: float
    y: float
    glyph: Glyph
    colour: Colour
    tip: str = ""  # shown under the pointer
    key: str = ""  # by which a page's script finds it


@dataclass(frozen=True)
class Text:
    """One line of text; y is its baseline."""

    x: float
    y: float
    words: str
    size: float = 12
    colour: Colour = Colour.INK
    anchor: Anchor = Anchor.START
    bold: bool = False


Shape = Line | Box | Mark | Text
RADIUS = 3.5  # of a mark
_LETTER, _LARGE, _SIGN = 0.58, 0.64, 0.84  # widths of letters, digits and capitals, and signs


def corners_of(mark: Mark) -> tuple[tuple[float, float], ...]:
    """Return the corners of a mark with corners; its area is about that of a disc."""
    r = RADIUS
    around: dict[Glyph, tuple[tuple[float, float], ...]] = {
        Glyph.SQUARE: ((-r, -r), (r, -r), (r, r), (-r, r)),
        Glyph.TRIANGLE: ((0, -1.35 * r), (1.25 * r, 0.9 * r), (-1.25 * r, 0.9 * r)),
        Glyph.DIAMOND: ((0, -1.4 * r), (1.4 * r, 0), (0, 1.4 * r), (-1.4 * r, 0)),
    }
    return tuple((mark.x + x, mark.y + y) for x, y in around.get(mark.glyph, ()))


@dataclass(frozen=True)
class Drawing:
    """A picture of shapes, which are drawn in their order."""

    width: float
    height: float
    shapes: tuple[Shape, ...]
    label: str  # the picture in words, for people who do not see it
    axes: tuple[LogScale, LogScale] | None = None  # x and y of the one chart in it


def text_width(words: str, size: float) -> float:
    """Estimate the width of a text, a little more than it needs in common fonts."""
    large = sum(letter.isdigit() or letter.isupper() for letter in words)
    signs = sum(letter in "×+=%" for letter in words)
    return size * (_LETTER * (len(words) - large - signs) + _LARGE * large + _SIGN * signs)


def cut_text(words: str, size: float, width: float) -> str:
    """Cut a text to a width; three dots stand for the part that is left out."""
    if text_width(words, size) <= width:
        return words
    room = width - text_width("...", size)
    fits = (at for at in range(len(words), 0, -1) if text_width(words[:at], size) <= room)
    return words[: next(fits, 0)] + "..."


_FONT = "system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif"


def svg_text(drawing: Drawing, *, inline: bool = False) -> str:
    """Return the SVG document. With `inline` it is part of a page that has the rules of its
    colours.

    Colours are attributes of the light picture, so that a program without styles draws the light
    picture.
    """
    body = "\n".join(_shape(shape) for shape in drawing.shapes)
    wide, high = f"{drawing.width:.0f}", f"{drawing.height:.0f}"
    ground = Box(0, 0, drawing.width, drawing.height, Colour.GROUND)
    style = "" if inline else f"<style>{colour_style()}</style>\n{_shape(ground)}\n"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" '
        f'height="{high}" role="img" aria-label="{escape(drawing.label)}" '
        f'font-family="{_FONT}">\n{style}{body}\n</svg>\n'
    )


def colour_style() -> str:
    """Return the rules that colour shapes on a dark ground, if the reader's system is dark."""
    dark = {name: colour.value[1] for name, colour in Colour.__members__.items()}
    return f"@media (prefers-color-scheme: dark){{{_rules(dark)}}}"


def scheme_style() -> str:
    """Return the rules that colour shapes by the page's `color-scheme`, which the page may let
    choose.
    """
    return _rules(
        {
            name: f"light-dark({colour.value[0]},{colour.value[1]})"
            for name, colour in Colour.__members__.items()
        }
    )


def _rules(colours: Mapping[str, str]) -> str:
    return "".join(
        f".f-{name}{{fill:{colour}}}.s-{name}{{stroke:{colour}}}"
        for name, colour in colours.items()
    )


def _fill(colour: Colour) -> str:
    return f'class="f-{colour.name}" fill="{colour.value[0]}"'


def _stroke(colour: Colour, width: float) -> str:
    return f'class="s-{colour.name}" stroke="{colour.value[0]}" stroke-width="{width:g}"'


def _shape(shape: Shape) -> str:
    if isinstance(shape, Line):
        dashes = ' stroke-dasharray="5 4"' if shape.dashed else ""
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        stroke = _stroke(shape.colour, shape.width)
        return f'<polyline{_key(shape.key)} points="{points}" fill="none" {stroke}{dashes}/>'
    if isinstance(shape, Box):
        return (
            f'<rect x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" '
            f'height="{shape.height:.1f}" {_fill(shape.colour)}/>'
        )
    if isinstance(shape, Mark):
        return _mark(shape)
    return _text(shape)


def _mark(mark: Mark) -> str:
    tip = f"<title>{escape(mark.tip)}</title>" if mark.tip else ""
    if corners := corners_of(mark):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        return f'<polygon{_key(mark.key)} points="{points}" {_fill(mark.colour)}>{tip}</polygon>'
    place = f'cx="{mark.x:.1f}" cy="{mark.y:.1f}" r="{RADIUS}"'
    if mark.glyph is Glyph.DISC:
        return f"<circle{_key(mark.key)} {place} {_fill(mark.colour)}>{tip}</circle>"
    classes = f'class="f-{Colour.GROUND.name} s-{mark.colour.name}"'
    colours = f'fill="{Colour.GROUND.value[0]}" stroke="{mark.colour.value[0]}"'
    return f'<circle{_key(mark.key)} {place} {classes} {colours} stroke-width="1.6">{tip}</circle>'


def _key(key: str) -> str:
    return f' data-key="{escape(key)}"' if key else ""


def _text(text: Text) -> str:
    anchor = "" if text.anchor is Anchor.START else f' text-anchor="{text.anchor.value}"'
    bold = ' font-weight="600"' if text.bold else ""
    return (
        f'<text x="{text.x:.1f}" y="{text.y:.1f}" font-size="{text.size:g}"{anchor}{bold} '
        f"{_fill(text.colour)}>{escape(text.words)}</text>"
    )


def joined(drawings: Iterable[Drawing]) -> str:
    """Join drawings of one page, each in a box that the page can place."""
    return "\n".join(f"<figure>{svg_text(one, inline=True)}</figure>" for one in drawings)


_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_COLOURS = ("GROUND", "INK", "MUTED", "RULE", "FIRST", "SECOND")
_STYLE = """
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif;
  color: var(--INK); background: var(--GROUND); max-width: 880px; margin: 24px auto;
  padding: 0 14px; overflow-wrap: anywhere; }
h1 { font-size: 23px; line-height: 1.25; margin: 0 0 4px; }
h2 { font-size: 17px; line-height: 1.3; margin: 36px 0 2px; }
p { margin: 4px 0; } .muted { color: var(--MUTED); } a { color: var(--SECOND); }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 400px), 1fr));
  gap: 20px 28px; margin-top: 14px; }
figure { margin: 0; } svg { display: block; max-width: 100%; height: auto; }
.table { overflow-x: auto; margin-top: 14px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { padding: 4px 7px; text-align: right; border-bottom: 1px solid var(--RULE);
  overflow-wrap: normal; }
th { color: var(--MUTED); font-weight: 600; } td { font-variant-numeric: tabular-nums; }
th:first-child, td:first-child, td.words, th.words { text-align: left; }
tr.group th { text-align: left; color: var(--INK); padding-top: 18px; font-size: 14px; }
tr.group span { color: var(--MUTED); font-weight: 400; }
@media (max-width: 480px) { th, td { padding: 4px 3px; } table { font-size: 12px; } }
"""


def html_page(title: str, body: str) -> str:
    """Return a page with a title (plain text) and a body (HTML), light or dark as the system is."""
    light, dark = (
        "".join(f"--{name}:{Colour[name].value[ground]};" for name in _COLOURS) for ground in (0, 1)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
<style>:root{{{light}}}
@media (prefers-color-scheme: dark){{:root{{{dark}}}}}
{_STYLE}{colour_style()}</style>
</head>
<body>
{body}
</body>
</html>
"""

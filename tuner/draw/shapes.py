"""What a picture consists of. Lengths are pixels of a picture at its natural size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from textwrap import wrap

from tuner.draw.scale import LogScale


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
    """The corners of a mark that has some; its area is about that of a disc."""
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
    """About the width of a text, a little more than it needs in common fonts."""
    large = sum(letter.isdigit() or letter.isupper() for letter in words)
    signs = sum(letter in "×+=%" for letter in words)
    return size * (_LETTER * (len(words) - large - signs) + _LARGE * large + _SIGN * signs)


def cut_text(words: str, size: float, width: float) -> str:
    """A text that fits a width; three dots stand for what is left out."""
    if text_width(words, size) <= width:
        return words
    room = width - text_width("...", size)
    fits = (at for at in range(len(words), 0, -1) if text_width(words[:at], size) <= room)
    return words[: next(fits, 0)] + "..."


def stack(drawings: Sequence[Drawing], label: str, gap: float = 20, margin: float = 14) -> Drawing:
    """The drawings below each other, as one with a margin."""
    shapes: list[Shape] = []
    top = margin
    for one in drawings:
        shapes += [_moved(shape, margin, top) for shape in one.shapes]
        top += one.height + gap
    width = max((one.width for one in drawings), default=0.0)
    return Drawing(width + 2 * margin, top - gap + margin, tuple(shapes), label)


def heading(title: str, details: str, width: float) -> Drawing:
    """A heading: a title in bold, and details below it, each on as many lines as it takes."""
    shapes: list[Shape] = []
    y = 0.0
    for words, size, colour in ((title, 15, Colour.INK), (details, 12, Colour.MUTED)):
        for line in wrap(words, int(width / (_LETTER * size))) if words else []:
            y += size + 5
            shapes.append(Text(0, y, line, size, colour, bold=size == 15))
    return Drawing(width, y + 4, tuple(shapes), title)


def _moved(shape: Shape, right: float, down: float) -> Shape:
    if isinstance(shape, Line):
        return replace(shape, points=tuple((x + right, y + down) for x, y in shape.points))
    return replace(shape, x=shape.x + right, y=shape.y + down)

"""A drawing as PNG, by Pillow (the extra `pictures`)."""

from __future__ import annotations

import io
import math
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

from tuner.draw.shapes import (
    RADIUS,
    Anchor,
    Box,
    Colour,
    Drawing,
    Glyph,
    Line,
    Mark,
    Shape,
    Text,
    corners_of,
)

_SCALE = 2  # pixels of the file for one of the drawing, for screens with many
_FINER = 2  # drawn so much larger, then reduced: Pillow's lines have hard edges
_ANCHORS = {Anchor.START: "ls", Anchor.MIDDLE: "ms", Anchor.END: "rs"}  # Pillow's, at the baseline


def png_bytes(drawing: Drawing, *, dark: bool = False) -> bytes:
    """The PNG file, with twice the drawing's width and height in pixels."""
    pen = _Pen(drawing, dark)
    for shape in drawing.shapes:
        pen.draw(shape)
    size = round(drawing.width * _SCALE), round(drawing.height * _SCALE)
    out = io.BytesIO()
    pen.image.resize(size, Image.Resampling.LANCZOS).save(out, "PNG", optimize=True)
    return out.getvalue()


class _Pen:
    """Draws shapes onto an image in the colours of one ground."""

    def __init__(self, drawing: Drawing, dark: bool) -> None:
        self.zoom = _SCALE * _FINER
        self.dark = dark
        size = round(drawing.width * self.zoom), round(drawing.height * self.zoom)
        self.image = Image.new("RGB", size, self._colour(Colour.GROUND))
        self.on = ImageDraw.Draw(self.image)

    def draw(self, shape: Shape) -> None:
        if isinstance(shape, Line):
            self._line(shape)
        elif isinstance(shape, Box):
            x, y = shape.x, shape.y
            self._box((x, y, x + shape.width, y + shape.height), shape.colour)
        elif isinstance(shape, Mark):
            self._mark(shape)
        else:
            self._text(shape)

    def _colour(self, colour: Colour) -> str:
        return colour.value[self.dark]

    def _box(self, corners: tuple[float, float, float, float], colour: Colour) -> None:
        self.on.rectangle([one * self.zoom for one in corners], fill=self._colour(colour))

    def _line(self, line: Line) -> None:
        width = max(round(line.width * self.zoom), 1)
        pieces = _dashes(line.points) if line.dashed else [line.points]
        for piece in pieces:
            scaled = [(x * self.zoom, y * self.zoom) for x, y in piece]
            self.on.line(scaled, fill=self._colour(line.colour), width=width, joint="curve")

    def _mark(self, mark: Mark) -> None:
        x, y = mark.x, mark.y
        around = [x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS]
        scaled = [one * self.zoom for one in around]
        colour = self._colour(mark.colour)
        if corners := corners_of(mark):
            self.on.polygon([(x * self.zoom, y * self.zoom) for x, y in corners], fill=colour)
        elif mark.glyph is Glyph.DISC:
            self.on.ellipse(scaled, fill=colour)
        elif mark.glyph is Glyph.RING:
            ground = self._colour(Colour.GROUND)
            self.on.ellipse(scaled, fill=ground, outline=colour, width=round(1.6 * self.zoom))

    def _text(self, text: Text) -> None:
        # Pillow's own font has the characters of ASCII and little more.
        words = text.words.encode("ascii", "replace").decode()
        self.on.text(
            (text.x * self.zoom, text.y * self.zoom),
            words,
            fill=self._colour(text.colour),
            font=_font(text.size * self.zoom),
            anchor=_ANCHORS[text.anchor],
            stroke_width=self.zoom // 4 if text.bold else 0,
            stroke_fill=self._colour(text.colour),
        )


@lru_cache(maxsize=16)
def _font(size: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _dashes(
    points: tuple[tuple[float, float], ...], on: float = 5.0, off: float = 4.0
) -> list[tuple[tuple[float, float], ...]]:
    """The drawn pieces of a dashed line; the pattern goes on round corners."""
    pieces: list[tuple[tuple[float, float], ...]] = []
    at = 0.0
    for (x0, y0), (x1, y1) in zip(points, points[1:], strict=False):
        length = math.hypot(x1 - x0, y1 - y0)
        done = 0.0
        while done < length:
            phase = at % (on + off)
            step = min((on if phase < on else on + off) - phase, length - done) + 1e-9
            if phase < on:
                ends = (done / length, min((done + step) / length, 1.0))
                pieces.append(tuple((x0 + (x1 - x0) * t, y0 + (y1 - y0) * t) for t in ends))
            done, at = done + step, at + step
    return pieces

"""A drawing as SVG, light or dark as the reader's system is."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from tuner.draw.shapes import RADIUS, Anchor, Box, Colour, Drawing, Glyph, Line, Mark, Shape, Text

_FONT = "system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif"


def svg_text(drawing: Drawing, *, inline: bool = False) -> str:
    """The SVG document. With `inline` it is part of a page that has `colour_style`.

    Colours are attributes of the light picture, so that a program without styles draws that one.
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
    """The rules that colour shapes on a dark ground."""
    rules = "".join(
        f".f-{colour.name}{{fill:{colour.value[1]}}}.s-{colour.name}{{stroke:{colour.value[1]}}}"
        for colour in Colour.__members__.values()
    )
    return f"@media (prefers-color-scheme: dark){{{rules}}}"


def _fill(colour: Colour) -> str:
    return f'class="f-{colour.name}" fill="{colour.value[0]}"'


def _stroke(colour: Colour, width: float) -> str:
    return f'class="s-{colour.name}" stroke="{colour.value[0]}" stroke-width="{width:g}"'


def _shape(shape: Shape) -> str:
    if isinstance(shape, Line):
        dashes = ' stroke-dasharray="5 4"' if shape.dashed else ""
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        stroke = _stroke(shape.colour, shape.width)
        return f'<polyline points="{points}" fill="none" {stroke}{dashes}/>'
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
    if mark.glyph is Glyph.SQUARE:
        side = 2 * RADIUS
        place = (
            f'x="{mark.x - RADIUS:.1f}" y="{mark.y - RADIUS:.1f}" width="{side}" height="{side}"'
        )
        return f"<rect {place} {_fill(mark.colour)}>{tip}</rect>"
    place = f'cx="{mark.x:.1f}" cy="{mark.y:.1f}" r="{RADIUS}"'
    if mark.glyph is Glyph.DISC:
        return f"<circle {place} {_fill(mark.colour)}>{tip}</circle>"
    classes = f'class="f-{Colour.GROUND.name} s-{mark.colour.name}"'
    colours = f'fill="{Colour.GROUND.value[0]}" stroke="{mark.colour.value[0]}"'
    return f'<circle {place} {classes} {colours} stroke-width="1.6">{tip}</circle>'


def _text(text: Text) -> str:
    anchor = "" if text.anchor is Anchor.START else f' text-anchor="{text.anchor.value}"'
    bold = ' font-weight="600"' if text.bold else ""
    return (
        f'<text x="{text.x:.1f}" y="{text.y:.1f}" font-size="{text.size:g}"{anchor}{bold} '
        f"{_fill(text.colour)}>{escape(text.words)}</text>"
    )


def joined(drawings: Iterable[Drawing]) -> str:
    """Several drawings of one page, each in a box that the page can place."""
    return "\n".join(f"<figure>{svg_text(one, inline=True)}</figure>" for one in drawings)

"""A drawing as SVG, light or dark as the reader's system is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

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

_FONT = "system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif"


def svg_text(drawing: Drawing, *, inline: bool = False) -> str:
    """The SVG document. With `inline` it is part of a page that has the rules of its colours.

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
    """The rules that colour shapes on a dark ground, where the reader's system is dark."""
    dark = {name: colour.value[1] for name, colour in Colour.__members__.items()}
    return f"@media (prefers-color-scheme: dark){{{_rules(dark)}}}"


def scheme_style() -> str:
    """The rules that colour shapes by the `color-scheme` of the page, which it may let choose."""
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
    """Several drawings of one page, each in a box that the page can place."""
    return "\n".join(f"<figure>{svg_text(one, inline=True)}</figure>" for one in drawings)

"""A drawing as SVG, and a page of HTML around drawings, light or dark as the system is.

A page stands alone: it loads no script, style sheet, picture or font.
"""

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
    """A page with a title (plain text) and a body (HTML), light or dark as the system is."""
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

"""A page of HTML that stands alone: it loads no script, style sheet, picture or font."""

from __future__ import annotations

from html import escape

from tuner.draw.shapes import Colour
from tuner.draw.svg import colour_style

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
td.better, td.worse, td.unclear { font-weight: 600; }
td.better { color: var(--SECOND); } td.worse { color: var(--FIRST); }
td.unclear { color: var(--MUTED); }
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

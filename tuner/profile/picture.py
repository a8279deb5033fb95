"""An estimate as an SVG picture: a bar for each phase, cut into families."""

from __future__ import annotations

from html import escape

from tuner.profile.estimate import Estimate, PhaseEstimate, Row
from tuner.profile.families import Maker, kernel_families
from tuner.profile.profile import GAPS

_WIDTH, _MARGIN, _BAR = 848, 16, 44  # pixels
_COLUMNS = 2  # of the legend
_TEXT, _MUTED = "#1b1f24", "#5b6470"
# What can be tuned stands out; the others are shades of grey.
_TUNED = ("#2563a8", "#1a7f4b", "#8a4fbf", "#b35900")
_TRITON, _COMPILED, _GAP = "#8fb7dd", "#b4bcc8", "#eceff3"
_LEAST = 0.005  # narrower families are drawn together


def render_svg(found: Estimate) -> str:
    """The SVG document. Names from the trace are escaped."""
    body, top = [], 40
    for phase in found.phases:
        drawn, height = _phase(phase, found, top)
        body += drawn
        top += height
    title = f"Where the GPU's time goes: {found.profile.device or 'a GPU'}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}" '
        f'height="{top}" role="img" aria-label="{escape(title)}" '
        'font-family="system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif">\n'
        f'<rect width="{_WIDTH}" height="{top}" fill="#ffffff"/>\n'
        f"{_words(_MARGIN, 24, title, 15, _TEXT)}\n" + "\n".join(body) + "\n</svg>\n"
    )


def _phase(phase: PhaseEstimate, found: Estimate, top: int) -> tuple[list[str], int]:
    """The drawing of a phase, and its height."""
    part = phase.time_us / found.profile.time_us()
    words = f"{phase.phase.value}: {phase.time_us / 1e3:,.1f} ms, {part:.0%} of the time"
    if phase.gain > 1.0005:
        words += f"; {phase.gain:.2f}x as fast with tuning"
    drawn = [_words(_MARGIN, top + 18, words, 13, _TEXT)]
    x, width = float(_MARGIN), _WIDTH - 2 * _MARGIN
    shown = [row for row in phase.rows if row.share >= _LEAST]
    legend = top + 30 + _BAR
    for position, row in enumerate(shown):
        wide = row.share * width
        colour = _colour(row)
        drawn.append(
            f'<rect x="{x:.1f}" y="{top + 26}" width="{max(wide - 1, 0.5):.1f}" height="{_BAR}" '
            f'fill="{colour}"><title>{escape(row.title)} {row.share:.1%}</title></rect>'
        )
        x += wide
        line, column = divmod(position, _COLUMNS)
        left, y = _MARGIN + column * (width / _COLUMNS), legend + 10 + line * 20
        drawn.append(
            f'<rect x="{left:.1f}" y="{y}" width="11" height="11" rx="2" fill="{colour}"/>'
        )
        drawn.append(_words(left + 17, y + 10, _label(row), 11, _MUTED))
    return drawn, 30 + _BAR + 16 + 20 * (-(-len(shown) // _COLUMNS)) + 10


def _label(row: Row) -> str:
    saves = f", saves {row.saved:.1%}" if row.saved else ""
    return f"{row.title} {row.share:.1%}{saves}"


def _colour(row: Row) -> str:
    families = kernel_families()
    tuned = [name for name, family in families.items() if family.tuned_as]
    if row.family in tuned:
        return _TUNED[tuned.index(row.family) % len(_TUNED)]
    if row.family == GAPS:
        return _GAP
    known = families.get(row.family)
    return _TRITON if known and known.maker is Maker.TRITON else _COMPILED


def _words(x: float, y: float, text: str, size: int, colour: str) -> str:
    return f'<text x="{x:.1f}" y="{y}" font-size="{size}" fill="{colour}">{escape(text)}</text>'

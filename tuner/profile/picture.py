"""An estimate as a picture: for each phase, a bar for each family of kernels."""

from __future__ import annotations

from tuner.draw.chart import WIDTH
from tuner.draw.shapes import Anchor, Box, Colour, Drawing, Shape, Text, cut_text, heading, stack
from tuner.profile.estimate import Estimate, FamilyShare, PhaseEstimate
from tuner.profile.families import kernel_families
from tuner.render import gain_text

_LEAST = 0.005  # smaller shares are left to the table
_ROW, _TOP, _BAR, _SHARE = 30.0, 30.0, 6.0, 130.0  # the last one: width of the column of shares
_DETAILS = "Bars: shares of the phase's time. Blue: this tool tunes it. Orange: tuning can save it."


def draw_estimate(found: Estimate) -> Drawing:
    """The phases below each other, each with its families, the largest share first."""
    title = f"Where the GPU's time goes: {found.profile.device or 'a GPU'}"
    phases = [_phase(phase, found.profile.time_us()) for phase in found.phases]
    return stack([heading(title, _DETAILS, WIDTH), *phases], title)


def _phase(phase: PhaseEstimate, all_us: float) -> Drawing:
    words = f"{phase.phase.value}: {phase.time_us / 1e3:,.1f} ms, {phase.time_us / all_us:.0%}"
    if phase.gain > 1.0005:
        words += f"; {gain_text(phase.gain)} as fast with tuning"
    shapes: list[Shape] = [Text(0, 16, cut_text(words, 13, WIDTH), 13, bold=True)]
    rows = [row for row in phase.rows if row.share >= _LEAST]
    for at, row in enumerate(rows):
        shapes += _family(row, _TOP + at * _ROW)
    return Drawing(WIDTH, _TOP + _ROW * len(rows), tuple(shapes), words)


def _family(row: FamilyShare, top: float) -> list[Shape]:
    known = kernel_families().get(row.family)
    colour = Colour.SECOND if known and known.tuned_as else Colour.THIRD
    wide, saved = WIDTH * row.share, WIDTH * row.saved
    saves = f", saves {row.saved:.1%}" if row.saved else ""
    return [
        Text(0, top + 12, cut_text(row.title, 12, WIDTH - _SHARE), 12),
        Text(WIDTH, top + 12, f"{row.share:.1%}{saves}", 12, Colour.MUTED, Anchor.END),
        Box(0, top + 17, WIDTH, _BAR, Colour.RULE),
        Box(0, top + 17, wide, _BAR, colour),
        *([Box(wide - saved, top + 17, saved, _BAR, Colour.FIRST)] if saved else []),
    ]

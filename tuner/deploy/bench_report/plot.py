"""Draw a comparison as an SVG picture, with bars before and after for each metric and load."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tuner.deploy.bench_report.compare import Comparison, Pair, cut
from tuner.deploy.bench_report.tables import by_metric

# Each group gets a panel for its first metric that was measured. Others are only in the table.
_SHOWN = (
    ("decode_throughput",),
    ("output_throughput",),
    ("median_ttft_ms", "mean_ttft_ms"),
    ("median_tpot_ms", "mean_tpot_ms", "median_itl_ms", "mean_itl_ms"),
)
_WIDTH, _LABELS, _GAINS, _MARGIN = 848, 280, 84, 2  # pixels
_LONGEST_LABEL = 46  # characters
_BAR, _ROW, _TITLE = 12, 40, 34
_BEFORE, _AFTER, _TEXT, _MUTED, _RULE = "#b4bcc8", "#2563a8", "#1b1f24", "#5b6470", "#dfe3e8"
_VERDICTS = {"better": "#1a7f4b", "worse": "#b3261e", "unclear": _MUTED}


def render_svg(comparison: Comparison) -> str:
    """The SVG document. Text from benchmark files is escaped."""
    groups = by_metric(comparison.pairs)
    names = [next((n for n in group if n in groups), "") for group in _SHOWN]
    shown = [groups[n] for n in names if n] or list(groups.values())[:1]
    body, top = [_legend(any(p.before.n > 1 or p.after.n > 1 for p in comparison.pairs))], 44
    for pairs in shown:
        body.append(_panel(pairs, top))
        top += _TITLE + _ROW * len(pairs) + 18
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}" '
        f'height="{top}" role="img" aria-label="Benchmark before and after" '
        'font-family="system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif">\n'
        f'<rect width="{_WIDTH}" height="{top}" fill="#ffffff"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _legend(spread: bool) -> str:
    parts = []
    for x, colour, word in ((_MARGIN, _BEFORE, "before"), (_MARGIN + 84, _AFTER, "after")):
        parts.append(f'<rect x="{x}" y="14" width="12" height="12" rx="2" fill="{colour}"/>')
        parts.append(_text(x + 18, 24, word, 13))
    note = "gain above 1 is better"
    if spread:
        note += "; a thin line spans the lowest to the highest value"
    parts.append(_text(_WIDTH - _MARGIN, 24, note, 12, _MUTED, "end"))
    return "\n".join(parts)


def _panel(pairs: Sequence[Pair], top: int) -> str:
    metric = pairs[0].metric
    direction = "higher is better" if metric.higher_is_better else "lower is better"
    longest = max(s.high for p in pairs for s in (p.before, p.after))
    parts = [
        f'<line x1="{_MARGIN}" y1="{top}" x2="{_WIDTH - _MARGIN}" y2="{top}" stroke="{_RULE}"/>',
        _text(_MARGIN, top + 21, f"{metric.title} ({metric.unit})", 14, weight=600),
        _text(_WIDTH - _MARGIN, top + 21, direction, 12, _MUTED, "end"),
    ]
    for i, pair in enumerate(pairs):
        parts.append(_row(pair, top + _TITLE + i * _ROW, longest))
    return "\n".join(parts)


def _row(pair: Pair, y: int, longest: float) -> str:
    # 64 pixels are left after the longest bar for its value.
    scale = (_WIDTH - _LABELS - _GAINS - 2 * _MARGIN - 64) / longest
    x = _MARGIN + _LABELS
    label = str(pair.key)
    if len(label) > _LONGEST_LABEL:
        label = label[: _LONGEST_LABEL - 1] + "\u2026"
    parts = [_text(x - 10, y + 17, label, 12, _TEXT, "end")]
    for offset, spread, colour in ((0, pair.before, _BEFORE), (_BAR + 2, pair.after, _AFTER)):
        width = max(spread.median * scale, 1)
        parts.append(
            f'<rect x="{x}" y="{y + offset}" width="{width:.1f}" height="{_BAR}" rx="2" '
            f'fill="{colour}"/>'
        )
        end = width
        if spread.n > 1:
            middle, end = y + offset + _BAR / 2, max(width, spread.high * scale)
            parts.append(
                f'<line x1="{x + spread.low * scale:.1f}" y1="{middle}" '
                f'x2="{x + spread.high * scale:.1f}" y2="{middle}" stroke="{_TEXT}"/>'
            )
        value = f"{spread.median:,.2f}" if spread.median < 1000 else f"{spread.median:,.0f}"
        parts.append(_text(x + end + 6, y + offset + 10, value, 11, _MUTED))
    colour = _VERDICTS[pair.verdict]
    parts.append(_text(_WIDTH - _MARGIN, y + 19, cut(pair.gain), 16, colour, "end", 600))
    return "\n".join(parts)


def _text(
    x: float,
    y: float,
    words: str,
    size: int,
    colour: str = _TEXT,
    anchor: str = "start",
    weight: int = 400,
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )

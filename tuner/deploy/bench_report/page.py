"""The report as one HTML page with an inline picture; it loads no other file."""

from __future__ import annotations

from html import escape

from tuner.deploy.bench_report.compare import Comparison, Pair, cut
from tuner.deploy.bench_report.plot import render_svg
from tuner.deploy.bench_report.tables import by_metric, spread_text, unpaired

_STYLE = """
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif;
  color: #1b1f24; background: #fff; max-width: 880px; margin: 32px auto; padding: 0 16px; }
h1 { font-size: 24px; margin: 0 0 4px; }
p { margin: 4px 0; } .muted { color: #5b6470; } svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; margin-top: 24px; }
tr.metric th { text-align: left; color: #1b1f24; padding-top: 18px; font-size: 14px; }
tr.metric span { color: #5b6470; font-weight: 400; }
th, td { padding: 5px 8px; text-align: right; border-bottom: 1px solid #dfe3e8; }
th { color: #5b6470; font-weight: 600; } td { font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; }
td.better, td.worse, td.unclear { font-weight: 600; }
td.better { color: #1a7f4b; } td.worse { color: #b3261e; } td.unclear { color: #5b6470; }
"""
# The page may load no script, style sheet, picture or font.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render_page(comparison: Comparison, before: str, after: str) -> str:
    """The HTML page. `before` and `after` name the two sides, e.g. their files."""
    groups = by_metric(comparison.pairs)
    rows = "\n".join(_rows(pairs) for pairs in groups.values())
    alone = "\n".join(f'<p class="muted">{escape(line)}</p>' for line in unpaired(comparison))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>Benchmark: before and after</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Benchmark: before and after</h1>
<p class="muted">{escape(before)} &rarr; {escape(after)}</p>
<p>{escape(headline(comparison))}</p>
{render_svg(comparison) if comparison.pairs else ""}
<table>
<thead><tr><th>load</th><th>before</th><th>after</th><th>gain</th><th>spread</th><th>n</th></tr>
</thead>
<tbody>
{rows}
</tbody>
</table>
{alone}
<p class="muted">A gain above 1 is better, for throughput and latency alike. Gains are cut to two
decimals, not rounded. The spread is over runs paired one to one where both sides have as many,
else from the worst to the best case; where it reaches both sides of 1 the gain is grey. n counts
values before/after.</p>
</body>
</html>
"""


def headline(comparison: Comparison) -> str:
    """The gain in the first metric, as one sentence."""
    if not comparison.pairs:
        return "No load was measured on both sides."
    first = comparison.pairs[0].metric
    pairs = [p for p in comparison.pairs if p.metric == first]
    gains = sorted(p.gain for p in pairs)
    reach = cut(gains[0]) if len(gains) == 1 else f"{cut(gains[0])} to {cut(gains[-1])}"
    loads = "one load" if len(pairs) == 1 else f"{len(pairs)} loads"
    return f"{first.title}: {reach} over {loads}."


def _rows(pairs: list[Pair]) -> str:
    metric = pairs[0].metric
    direction = "higher is better" if metric.higher_is_better else "lower is better"
    title = f"{escape(metric.title)} <span>{escape(metric.unit)}, {direction}</span>"
    return "\n".join(
        [f'<tr class="metric"><th colspan="6">{title}</th></tr>', *(_row(p) for p in pairs)]
    )


def _row(pair: Pair) -> str:
    return (
        f"<tr><td>{escape(str(pair.key))}</td><td>{pair.before.median:,.2f}</td>"
        f"<td>{pair.after.median:,.2f}</td>"
        f'<td class="{pair.verdict}">{cut(pair.gain)}</td>'
        f"<td>{spread_text(pair)}</td><td>{pair.before.n}/{pair.after.n}</td></tr>"
    )

"""The report as one HTML page with inline pictures; it loads no other file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tuner.deploy.bench_report.compare import Comparison, Pair
from tuner.deploy.bench_report.tables import Summary, by_metric, spread_text, summary_rows, unpaired
from tuner.draw.shapes import Drawing
from tuner.draw.svg import html_page, joined
from tuner.render import gain_text


def render_page(
    comparison: Comparison, charts: Sequence[Drawing], title: str, before: str, after: str
) -> str:
    """The page of two runs. `before` and `after` name them, e.g. by their files."""
    groups = by_metric(comparison.pairs)
    rows = "\n".join(_rows(pairs) for pairs in groups.values())
    alone = "\n".join(f'<p class="muted">{escape(line)}</p>' for line in unpaired(comparison))
    body = f"""<h1>{escape(title)}</h1>
<p class="muted">{escape(before)} &rarr; {escape(after)}</p>
<p>{escape(headline(comparison))}</p>
<div class="charts">{joined(charts)}</div>
<div class="table"><table>
<thead><tr><th>load</th><th>before</th><th>after</th><th>gain</th><th>spread</th><th>n</th></tr>
</thead>
<tbody>
{rows}
</tbody>
</table></div>
{alone}
<p class="muted">A gain above 1 is better, for throughput and latency alike. Gains are cut to two
decimals, not rounded. The spread is over runs paired one to one where both sides have as many,
else from the worst to the best case; where it reaches both sides of 1 the gain is grey. n counts
values before/after.</p>"""
    return html_page(title, body)


def render_run_page(summary: Summary, charts: Sequence[Drawing], title: str, run: str) -> str:
    """The page of one run. `run` names it, e.g. by its file."""
    head, rows = summary_rows(summary)
    body = f"""<h1>{escape(title)}</h1>
<p class="muted">{escape(run)}</p>
<div class="charts">{joined(charts)}</div>
<div class="table"><table>
<thead>{_cells("th", head)}</thead>
<tbody>
{"".join(_cells("td", row) for row in rows)}
</tbody>
</table></div>
<p class="muted">Medians, where a load was measured several times.</p>"""
    return html_page(title, body)


def headline(comparison: Comparison) -> str:
    """The gain in the first metric, as one sentence."""
    if not comparison.pairs:
        return "No load was measured on both sides."
    first = comparison.pairs[0].metric
    pairs = [p for p in comparison.pairs if p.metric == first]
    gains = sorted(p.gain for p in pairs)
    reach = (
        gain_text(gains[0])
        if len(gains) == 1
        else f"{gain_text(gains[0])} to {gain_text(gains[-1])}"
    )
    loads = "one load" if len(pairs) == 1 else f"{len(pairs)} loads"
    return f"{first.title}: {reach} over {loads}."


def _rows(pairs: list[Pair]) -> str:
    metric = pairs[0].metric
    direction = "higher is better" if metric.higher_is_better else "lower is better"
    title = f"{escape(metric.title)} <span>{escape(metric.unit)}, {direction}</span>"
    return "\n".join(
        [f'<tr class="group"><th colspan="6">{title}</th></tr>', *(_row(p) for p in pairs)]
    )


def _row(pair: Pair) -> str:
    return (
        f"<tr><td>{escape(str(pair.key))}</td><td>{pair.before.median:,.2f}</td>"
        f"<td>{pair.after.median:,.2f}</td>"
        f'<td class="{pair.verdict}">{gain_text(pair.gain)}</td>'
        f"<td>{spread_text(pair)}</td><td>{pair.before.n}/{pair.after.n}</td></tr>"
    )


def _cells(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>\n"

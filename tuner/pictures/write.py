"""Write charts of winners, the pages and files that show them, and a terminal's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from textwrap import fill

from tuner.devices.table import Device
from tuner.draw.chart import Chart, Row, Series, Spot, draw_chart, draw_rows
from tuner.draw.shapes import Colour, Drawing, Glyph, html_page, joined
from tuner.pictures.rows import Origin, PictureRow, by_problem, over_title, rows_of, summary_line
from tuner.problems.points import Problem
from tuner.problems.results import Winner
from tuner.render import gain_text, table

_COLUMNS = 80
_ROOFLINE = (
    "The roofline is the least time that any kernel could take: the larger of the bytes over the "
    "memory's bandwidth and the operations over the tensor cores' peak."
)
_PREDICTED = "Predicted times are a model's: nothing ran on a GPU."


def page_of(winners: Sequence[Winner], device: Device) -> str:
    """Return the HTML page of all winners, with their charts and tables."""
    problems = by_problem(winners)
    rows = {problem: rows_of(problem, some, device) for problem, some in problems.items()}
    predicted = any(row.origin is Origin.PREDICTED for some in rows.values() for row in some)
    parts = [
        f"<h1>Tuned kernels on {escape(device.name)}</h1>",
        f'<p class="muted">{_ROOFLINE} {_PREDICTED if predicted else ""}</p>',
    ]
    for problem, some in problems.items():
        parts.append(_section(problem, rows[problem], some))
    return html_page(f"Tuned kernels on {device.name}", "\n".join(parts))


def _section(problem: Problem, rows: Sequence[PictureRow], winners: Sequence[Winner]) -> str:
    charts: Sequence[Drawing] = problem_charts(rows)
    return f"""<h2>{escape(title_of(problem))}</h2>
<p class="muted">{escape(_software(winners))}</p>
<p>{escape(summary_line(winners))}.</p>
<div class="charts">{joined(charts)}</div>
{_html_table(rows)}"""


def _html_table(rows: Sequence[PictureRow]) -> str:
    headers = _headers(rows)
    head = "".join(f"<th>{escape(name)}</th>" for name in headers)
    lines = []
    for title, some in _by_chart(rows).items():
        span = f'<tr class="group"><th colspan="{len(headers)}">{escape(title)}</th></tr>'
        cells = ("".join(f"<td>{escape(one)}</td>" for one in _cells(row)) for row in some)
        lines += [span, *(f"<tr>{one}</tr>" for one in cells)]
    body = "\n".join(lines)
    full = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="table"><table>{full}</table></div>'


def as_text(problem: Problem, rows: Sequence[PictureRow], winners: Sequence[Winner]) -> str:
    """Return a heading, the software, a table that fits 80 columns, and the gains in one sentence.

    The table has the sizes with a time; a line names the others.
    """
    parts = [fill(title_of(problem), _COLUMNS), fill(_software(winners), _COLUMNS)]
    timed = [row for row in rows if row.timed]
    headers = _headers(timed)
    for title, some in _by_chart(timed).items():
        parts += [title, table(headers, [_cells(row) for row in some], right=headers[1:5])]
    others = dict.fromkeys(row.size for row in rows if not row.timed)
    if others:
        parts.append(fill(f"No time is known at {', '.join(others)}", _COLUMNS))
    return "\n".join([*parts, fill(summary_line(winners), _COLUMNS)])


def _headers(rows: Sequence[PictureRow]) -> tuple[str, ...]:
    over = over_title(rows).removeprefix("Triton's ")
    gain = "gain" if all(row.without_us for row in rows) else f"over {over}"
    return ("size", f"{over} us", "tuned us", gain, "roofline us", "from")


def _by_chart(rows: Sequence[PictureRow]) -> Mapping[str, list[PictureRow]]:
    found: dict[str, list[PictureRow]] = {}
    for row in rows:
        found.setdefault(row.place.chart, []).append(row)
    return found


def _cells(row: PictureRow) -> tuple[str, ...]:
    times = (row.engine_us, row.tuned_us)
    engine, tuned = ("-" if us is None else f"{us:,.1f}" for us in times)
    gain = gain_text(row.gain) if row.gain else "-"
    return (row.size, engine, tuned, gain, _least(row.roofline_us), row.origin.value)


def _least(us: float) -> str:
    return f"{us:,.1f}" if us >= 1 else f"{us:.2g}"


def title_of(problem: Problem) -> str:
    """Return the problem's kind and shape, with a space after each comma, so that lines
    can break.
    """
    kind, _, shape = problem.spec().partition(":")
    return f"{kind} {shape.replace(',', ', ')}"


def engines_of(winners: Sequence[Winner]) -> list[str]:
    """Return the engines of some winners, each with its version: sglang==0.5.16."""
    places = (one.environment for one in winners)
    return sorted({f"{place.engine}=={place.engine_version}" for place in places})


def _software(winners: Sequence[Winner]) -> str:
    """Name the engines and Tritons of some winners, and the day of the newest."""
    of = {
        f"{w.environment.engine} {w.environment.engine_version}, Triton {w.environment.triton}"
        for w in winners
    }
    return f"{'; '.join(sorted(of))}; {max(w.published_at for w in winners):%Y-%m-%d}"


_GLYPHS = {
    Origin.MEASURED: Glyph.DISC,
    Origin.SHIPPED: Glyph.SQUARE,
    Origin.DEFAULT: Glyph.SQUARE,
    Origin.OWN: Glyph.SQUARE,
    Origin.COPIED: Glyph.SQUARE,
    Origin.PREDICTED: Glyph.RING,
}
_WORDS = {Glyph.DISC: "measured", Glyph.RING: "predicted", Glyph.SQUARE: "the engine's own"}


def problem_charts(rows: Sequence[PictureRow]) -> list[Drawing]:
    """Draw a chart of each kernel and length. A chart with one size becomes a row of a
    last chart.
    """
    charts: dict[str, list[PictureRow]] = {}
    for row in rows:
        charts.setdefault(row.place.chart, []).append(row)
    drawn = [_chart(title, some) for title, some in charts.items() if len(some) > 1]
    alone = [row for some in charts.values() if len(some) == 1 for row in some]
    timed = [row for row in alone if row.engine_us or row.tuned_us]
    return [*drawn, draw_rows("At one size", [_bar(row) for row in timed])] if timed else drawn


def _chart(title: str, rows: Sequence[PictureRow]) -> Drawing:
    engine = tuple(
        Spot(
            row.place.x,
            row.engine_us,
            Glyph.DISC if row.engine_measured else Glyph.RING,
            tip=f"{row.size}: {row.engine_us:.1f} us",
        )
        for row in rows
        if row.engine_us
    )
    tuned = tuple(
        Spot(
            row.place.x,
            row.tuned_us,
            _GLYPHS[row.origin],
            tip=f"{row.size}: {row.tuned_us:.1f} us, {row.origin.value}",
        )
        for row in rows
        if row.tuned_us
    )
    least = tuple(Spot(row.place.x, row.roofline_us, Glyph.NONE) for row in rows)
    series = (
        Series(over_title(rows), Colour.FIRST, engine),
        Series("tuned", Colour.SECOND, tuned),
        Series("roofline", Colour.THIRD, least, dashed=True),
    )
    used = {spot.glyph for spot in (*engine, *tuned)}
    chart = Chart(
        title=title,
        x_label=rows[0].place.x_label,
        y_label="us, lower is better",
        series=tuple(one for one in series if one.spots),
        gains={row.place.x: row.gain for row in rows if row.gain},
        glyphs={glyph: word for glyph, word in _WORDS.items() if glyph in used},
        x_names={row.place.x: f"{row.place.x:g}" for row in rows},
    )
    return draw_chart(chart)


def _bar(row: PictureRow) -> Row:
    times = " to ".join(f"{us:.1f}" for us in (row.engine_us, row.tuned_us) if us)
    counted = f"{row.place.x:g} {row.place.x_label.partition(' (')[0]}"
    return Row(f"{row.place.chart}: {counted}", f"{times} us, {row.origin.value}", row.gain)

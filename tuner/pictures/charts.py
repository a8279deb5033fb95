"""The charts of one problem's rows."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.draw.bars import Row as BarRow
from tuner.draw.bars import draw_rows
from tuner.draw.chart import Chart, Series, Spot, draw_chart
from tuner.draw.shapes import Colour, Drawing, Glyph
from tuner.pictures.rows import Origin, PictureRow, over_title

_GLYPHS = {
    Origin.MEASURED: Glyph.DISC,
    Origin.SHIPPED: Glyph.SQUARE,
    Origin.DEFAULT: Glyph.SQUARE,
    Origin.OWN: Glyph.SQUARE,
    Origin.PREDICTED: Glyph.RING,
}
_WORDS = {Glyph.DISC: "measured", Glyph.RING: "predicted", Glyph.SQUARE: "the engine's own"}


def problem_charts(rows: Sequence[PictureRow]) -> list[Drawing]:
    """A chart of each kernel and length. Those with one size are rows of a last one."""
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


def _bar(row: PictureRow) -> BarRow:
    times = " to ".join(f"{us:.1f}" for us in (row.engine_us, row.tuned_us) if us)
    counted = f"{row.place.x:g} {row.place.x_label.partition(' (')[0]}"
    return BarRow(f"{row.place.chart}: {counted}", f"{times} us, {row.origin.value}", row.gain)

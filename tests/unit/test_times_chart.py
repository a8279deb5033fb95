"""The charts of the pages: which places sizes have, and the lines of a result."""

from typing import Any

import pytest

from api.pages.winners import Times, chart_of, charts_of, entries_of
from tuner.draw.shapes import Colour, Glyph, Line, Mark


def line(times: dict[str, float]) -> Times:
    return Times("tuned", times, Colour.SECOND, Glyph.DISC)


def test_sizes_that_are_no_numbers_stand_at_equal_distances():
    chart = chart_of("extend", [line({"4×512+0": 10.0, "1×64+8192": 30.0, "2×8+0": 3.0})])
    first, second, third = chart.places.values()
    assert second - first == pytest.approx(third - second)
    tips = [shape.tip for shape in chart.drawing.shapes if isinstance(shape, Mark) and shape.tip]
    assert tips[:2] == ["tuned, 4×512+0: 10 µs", "tuned, 1×64+8192: 30 µs"]


def test_marks_are_where_a_script_would_put_them():
    chart = chart_of("up", [line({"64": 20.0, "1": 10.0})], below=4.0)
    assert chart is not None and chart.scale.low < 10.0 / 4
    marks = [one for one in chart.drawing.shapes if isinstance(one, Mark) and one.tip]
    wanted = [(chart.places["1"], 10.0), (chart.places["64"], 20.0)]
    assert [(one.x, one.y) for one in marks] == [(x, chart.scale.at(us)) for x, us in wanted]


def test_without_a_time_there_is_no_chart():
    assert chart_of("up", [line({})]) is None
    one = chart_of("up", [line({"8": 10.0})])
    assert one is not None and 0 < one.places["8"] < one.drawing.width


def test_every_line_of_a_part_differs_in_its_mark_or_its_colour():
    backends = ("default", "shipped", "deep_gemm", "cublas", "cutlass", "flashinfer")
    winners: list[dict[str, Any]] = [
        {
            "part": "dense",
            "batch_size": size,
            "median_us": 1.0,
            "least_us": 0.5,
            "incumbents": {name: {"median_us": 2.0 + at} for at, name in enumerate(backends)},
        }
        for size in (1, 8)
    ]
    (chart,) = charts_of(entries_of(winners))
    marks = [one for one in chart.drawing.shapes if isinstance(one, Mark) and one.tip]
    looks = {one.tip.partition(",")[0]: (one.glyph, one.colour) for one in marks}
    assert len(looks) == len(set(looks.values())) == len(backends) + 1
    dashed = [one for one in chart.drawing.shapes if isinstance(one, Line) and one.dashed]
    assert dashed and all(one.colour is Colour.THIRD for one in dashed)

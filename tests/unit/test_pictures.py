"""Pictures of winners: rows, charts, pages and the documents' own pictures."""

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from datetime import datetime, timezone
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from benchmark_scripts import load_script

from tuner.devices.table import find_device
from tuner.draw.chart import WIDTH, Chart, Series, Spot, draw_chart
from tuner.draw.shapes import (
    Colour,
    Drawing,
    Glyph,
    Line,
    Mark,
    Text,
    cut_text,
    log_scale,
    svg_text,
    text_width,
)
from tuner.families.attention.problem import AttentionPart
from tuner.families.fused_moe.problem import Gemm
from tuner.pictures.rows import Origin, PictureRow, rows_of, summary_line
from tuner.pictures.write import as_text, page_of, problem_charts
from tuner.problems.points import Config, Point
from tuner.problems.registry import parse_problem
from tuner.problems.results import Compiled, Entry, Environment, Incumbent, Status, Winner

ROOT = Path(__file__).parents[2]
H200 = find_device("H200")
LAYER = parse_problem("fused_moe:E=256,N=64,K=7168,top_k=8,dtype=int8_w8a8,per_channel_quant")
DECODE = parse_problem(
    "decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16,kv_splits=8"
)
EXTEND = parse_problem("extend_attention:q_heads=16,kv_heads=16,Lq=192,Lv=128,dtype=bfloat16")
OWN, OURS = Config({"BLOCK_SIZE_M": 64}), Config({"BLOCK_SIZE_M": 16})
HERE = Environment("NVIDIA_H200", "sglang", "0.5.16", "3.6.0", "a" * 64)


def winner(
    point: Point,
    tuned_us: float | None,
    status: Status = Status.OK,
    config: Config = OURS,
    problem: object = LAYER,
    **engine_us: float | None,
) -> Winner:
    """A winner; `engine_us` names the engine's choices, which all have the configuration OWN."""
    known = Status.OK if status is Status.OK else Status.PREDICTED
    incumbents = {name: Incumbent(OWN, known, us) for name, us in engine_us.items()}
    entry = Entry(point, config, status, tuned_us, Compiled(Status.OK), incumbents, "why")
    return Winner(problem, HERE, entry, 1, datetime(2026, 11, 22, tzinfo=timezone.utc))


def layer(status: Status = Status.OK, sizes: Sequence[int] = (1, 64, 4096)) -> list[Winner]:
    return [
        winner(Point(size, gemm), 10.0 + size, status, default=2 * (10.0 + size))
        for gemm in Gemm
        for size in sizes
    ]


class TestRows:
    def test_the_engines_time_is_that_of_its_file_where_it_ships_one(self):
        (row,) = rows_of(LAYER, [winner(Point(8, Gemm.UP), 10, default=30.0, shipped=15.0)], H200)
        assert (row.engine_us, row.tuned_us, row.gain) == (15.0, 10, 1.5)
        assert row.roofline_us == pytest.approx(10.976, abs=0.001)

    def test_rows_go_by_gemm_and_then_by_batch_size(self):
        rows = rows_of(LAYER, reversed(layer()), H200)
        assert [(row.place.chart, row.place.x) for row in rows] == [
            (f"{gemm} gemm", size) for gemm in ("up", "down") for size in (1, 64, 4096)
        ]

    @pytest.mark.parametrize(
        ("status", "config", "engine", "origin"),
        [
            (Status.OK, OURS, {"default": 1.0}, Origin.MEASURED),
            (Status.OK, OWN, {"default": 1.0}, Origin.MEASURED),
            (Status.OK, OWN, {"shipped": 1.0}, Origin.SHIPPED),
            (Status.PREDICTED, OURS, {"default": 1.0}, Origin.PREDICTED),
            (Status.PREDICTED, OWN, {"default": 1.0}, Origin.DEFAULT),
            (Status.PREDICTED, OWN, {"default": 1.0, "shipped": 1.0}, Origin.SHIPPED),
            (Status.INCUMBENT, OWN, {"shipped": None}, Origin.SHIPPED),
            (Status.INCUMBENT, OURS, {}, Origin.OWN),
            (Status.COPIED, OURS, {}, Origin.COPIED),
        ],
    )
    def test_each_entry_says_where_it_comes_from(self, status, config, engine, origin):
        (row,) = rows_of(LAYER, [winner(Point(8, Gemm.UP), 1.0, status, config, **engine)], H200)
        assert row.origin is origin

    def test_decodes_kernels_are_one_time_with_the_weaker_origin(self):
        entries = [
            winner(Point(4, AttentionPart.DECODE, 1, 1024), 20, problem=DECODE, default=30.0),
            winner(
                Point(4, AttentionPart.REDUCE, 1, 1024),
                5,
                Status.PREDICTED,
                problem=DECODE,
                default=10.0,
            ),
        ]
        (row,) = rows_of(DECODE, entries, H200)
        assert (row.engine_us, row.tuned_us, row.gain) == (40, 25, 1.6)
        assert row.origin is Origin.PREDICTED
        (half,) = rows_of(DECODE, [entries[0], winner(entries[1].entry.point, None)], H200)
        assert (half.tuned_us, half.gain) == (None, None)

    def test_the_summary_never_overstates(self):
        winners = layer(Status.PREDICTED)
        winners[0] = winner(Point(1, Gemm.UP), 11, Status.PREDICTED, default=21.999)
        line = summary_line(winners)
        assert line.startswith("1.99x as fast (geometric mean of 3 sizes), best 2.00x")
        assert "predicted" in line
        assert "No size" in summary_line([])


class TestCharts:
    def test_a_chart_has_the_three_lines_and_says_what_the_points_are(self):
        up, down = problem_charts(rows_of(LAYER, layer(), H200))
        words = [shape.words for shape in up.shapes if isinstance(shape, Text)]
        for word in ("up gemm", "Triton's default", "tuned", "roofline", "measured", "2.00x"):
            assert word in words
        assert "predicted" not in words
        assert "down gemm" in down.label

    def test_measured_and_predicted_points_have_other_forms(self):
        forms = {}
        for status in (Status.OK, Status.PREDICTED):
            (chart, _) = problem_charts(rows_of(LAYER, layer(status), H200))
            forms[status] = {shape.glyph for shape in chart.shapes if isinstance(shape, Mark)}
        assert forms[Status.OK] == {Glyph.DISC}
        assert forms[Status.PREDICTED] == {Glyph.RING}

    def test_sizes_that_make_no_line_are_rows(self):
        points = [Point(1, AttentionPart.EXTEND, 512, 0), Point(8, AttentionPart.EXTEND, 512, 2048)]
        entries = [winner(point, 10, problem=EXTEND, default=15.0) for point in points]
        (rows,) = problem_charts(rows_of(EXTEND, entries, H200))
        words = " ".join(shape.words for shape in rows.shapes if isinstance(shape, Text))
        assert words.count("1.50x") == 2
        assert "8 sequences, 2,048 cached tokens" in words

    def test_entries_without_times_draw_what_is_known(self):
        points = [Point(size, Gemm.UP) for size in (1, 8)]
        entries = [winner(point, None, Status.INCUMBENT, OWN, shipped=None) for point in points]
        (chart,) = problem_charts(rows_of(LAYER, entries, H200))
        assert "roofline" in chart.label
        assert not any(isinstance(shape, Mark) and shape.tip for shape in chart.shapes)

    @pytest.mark.parametrize("gain", [0.25, 1.0, 1.0001, 80.0])
    def test_every_shape_lies_in_the_picture(self, gain):
        entries = [
            winner(Point(size, Gemm.UP), 1e4, default=1e4 * gain) for size in (1, 2, 3, 4095, 4096)
        ]
        for chart in problem_charts(rows_of(LAYER, entries, H200)):
            for x, y in _corners(chart):
                assert -1 <= x <= chart.width + 1
                assert -1 <= y <= chart.height + 1
            assert chart.width == WIDTH <= 370  # a phone does not reduce it

    @pytest.mark.parametrize("long", [False, True])
    def test_names_on_the_axis_do_not_touch_and_are_not_cut(self, long):
        sizes = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096]
        names = {float(size): f"{size}×1+32768" if long else str(size) for size in sizes}
        line = Series("tuned", Colour.SECOND, tuple(Spot(x, 10 * x) for x in names))
        drawn = draw_chart(Chart("up", "size", "us", (line,), x_names=names))
        shown = [s for s in drawn.shapes if isinstance(s, Text) and s.words in names.values()]
        ends = sorted(
            (s.x - wide / 2, s.x + wide / 2)
            for s in shown
            for wide in (text_width(s.words, s.size),)
        )
        assert ends[0][0] >= 0 and ends[-1][1] <= WIDTH + 1e-6
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))
        assert {names[1], names[4096]} <= {s.words for s in shown}
        assert len(shown) >= (4 if long else 9)

    def test_a_digit_is_as_wide_as_the_widest_common_font_draws_it(self):
        """A digit of DejaVu Sans takes 0.636 of the size, and a sign 0.838."""
        assert text_width("128×1+32768", 11) >= (9 * 0.636 + 2 * 0.838) * 11

    def test_a_cut_text_is_as_long_as_there_is_room(self):
        for words in ("a title of lower case", "128×1+32768 AND MORE"):
            for width in (40, 90, 500):
                cut = cut_text(words, 13, width)
                assert text_width(cut, 13) <= width
                assert cut == words or (cut.endswith("...") and len(cut) > 3)

    def test_the_legend_shows_the_mark_of_each_line(self):
        glyphs = (Glyph.TRIANGLE, Glyph.DIAMOND, Glyph.NONE)
        lines = tuple(
            Series(one.value, Colour.FIRST, (Spot(1, 2, one), Spot(2, 3, one))) for one in glyphs
        )
        marks = [s for s in draw_chart(Chart("a", "x", "y", lines)).shapes if isinstance(s, Mark)]
        assert [one.glyph for one in marks].count(Glyph.TRIANGLE) == 3
        assert Glyph.NONE not in {one.glyph for one in marks}


def _corners(drawing: Drawing) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for shape in drawing.shapes:
        if isinstance(shape, Line):
            found += shape.points
            continue
        found.append((shape.x, shape.y))
        if isinstance(shape, Text):
            shift = {"start": 1.0, "middle": 0.5, "end": 0.0}[shape.anchor.value]
            wide = 0.85 * text_width(shape.words, shape.size)  # `text_width` errs upwards
            found += [(shape.x + wide * shift, shape.y), (shape.x - wide * (1 - shift), shape.y)]
    return found


class TestDrawing:
    def test_equal_ratios_are_equal_lengths(self):
        scale = log_scale([1, 1000], 0, 300)
        assert scale.at(10) - scale.at(1) == pytest.approx(scale.at(1000) - scale.at(100))

    @pytest.mark.parametrize("reach", [(5, 5), (5, 6), (5, 40), (1, 3e6), (0.001, 0.002)])
    def test_an_axis_has_some_ticks_and_not_too_many(self, reach):
        assert 2 <= len(log_scale(reach, 0, 100).ticks()) <= 8

    def test_colours_differ_from_the_ground_in_both_schemes(self):
        """WCAG asks for a contrast of 3 for what is drawn, and of 4.5 for text."""
        for ground in (0, 1):
            for colour in set(Colour.__members__.values()) - {Colour.GROUND, Colour.RULE}:
                assert _contrast(colour.value[ground], Colour.GROUND.value[ground]) >= 4.5

    def test_svg_is_well_formed_whatever_the_words_are(self):
        spots = (Spot(1, 1, tip="<&>\"'"), Spot(2, 5))
        series = Series("</svg><script>", Colour.FIRST, spots)
        drawn = draw_chart(Chart("a & b <i>", "x", "y", (series,)))
        tree = ET.fromstring(svg_text(drawn))  # noqa: S314
        assert not [one for one in tree.iter() if one.tag.endswith("script")]


def _contrast(one: str, other: str) -> float:
    """The ratio of two colours' luminance, as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [value / 255 for value in bytes.fromhex(colour.lstrip("#"))]
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "data", "action")]


class TestPages:
    def test_the_page_stands_alone(self):
        reader = _Links()
        reader.feed(page_of(layer(), H200))
        assert reader.links == []
        assert not {"script", "link", "img"} & reader.tags
        assert {"svg", "table"} <= reader.tags

    def test_the_page_says_if_times_are_predicted(self):
        said = "nothing ran on a GPU"
        assert said in page_of(layer(Status.PREDICTED), H200)
        assert said not in page_of(layer(Status.OK), H200)

    def test_the_table_fits_80_columns(self):
        sizes = (1, 4096, 1_048_576)
        winners = layer(sizes=sizes)
        text = as_text(LAYER, rows_of(LAYER, winners, H200), winners)
        assert max(map(len, text.splitlines())) <= 80
        assert "measured" in text

    def test_the_table_has_the_sizes_with_times_and_a_line_names_the_others(self):
        others = [winner(Point(n, g), None, Status.INCUMBENT) for n in (2, 4) for g in Gemm]
        winners = [*layer(sizes=(1, 64)), *others]
        text = as_text(LAYER, rows_of(LAYER, winners, H200), winners)
        rows = [line.split()[0] for line in text.splitlines() if line.endswith("measured")]
        assert rows == ["M=1", "M=64"] * 2
        assert "No time is known at M=2, M=4\n" in text
        assert " - " not in text

    def test_kept_shipped_entries_are_called_so(self):
        kept = [
            winner(Point(1, gemm), None, Status.INCUMBENT, config=OWN, shipped=9.0) for gemm in Gemm
        ]
        text = as_text(LAYER, rows_of(LAYER, kept, H200), kept)
        assert text.endswith("The engine's shipped entries were kept")


def test_the_documents_pictures_are_drawn_from_the_kept_results():
    """If this fails: python benchmarks/pictures.py"""
    drawn = load_script("pictures.py").pictures()
    kept = {path.name: path.read_bytes() for path in (ROOT / "docs/pictures").glob("*.svg")}
    assert kept == drawn


def test_a_row_is_json():
    (row, *_) = rows_of(LAYER, layer(), H200)
    assert isinstance(row, PictureRow)
    assert row.as_json()["origin"] == "measured"
    assert row.as_json()["gain"] == 2.0

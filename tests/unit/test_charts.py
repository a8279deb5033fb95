"""Where the charts of the pages draw their marks and labels."""

from __future__ import annotations

from api.pages.charts import HEIGHT, WIDTH, chart_of

SIZES = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096]


def test_marks_lie_in_the_drawing_in_the_order_of_their_values() -> None:
    times = {str(size): 10.0 * size**0.5 for size in reversed(SIZES)}
    chart = chart_of("up", {("tuned", "tuned"): times, ("default", "default"): {"1": 20.0}})
    assert chart is not None
    marks = chart.lines[0].marks
    across, up = [mark.x for mark in marks], [mark.y for mark in marks]
    assert across == sorted(across) and up == sorted(up, reverse=True)  # y grows downwards
    assert 0 < across[0] < across[-1] < WIDTH and 0 < up[-1] < up[0] < HEIGHT
    assert len(chart.lines[1].marks) == 1
    labels = [(tick.at, len(tick.text) * 7.5) for tick in chart.across]
    pairs = zip(labels, labels[1:], strict=False)
    assert all(a + wide / 2 < b - width / 2 for (a, wide), (b, width) in pairs)
    assert chart.across[0].text == "1" and len(chart.across) > 8


def test_one_value_and_sizes_that_are_no_numbers_have_a_place() -> None:
    one = chart_of("up", {("tuned", "tuned"): {"8": 10.0}})
    assert one is not None and 0 < one.lines[0].marks[0].y < HEIGHT
    names = chart_of("extend", {("tuned", "tuned"): {"4×512+0": 10.0, "1×64+8192": 30.0}})
    assert names is not None
    assert [mark.text for mark in names.lines[0].marks] == [
        "tuned, 4×512+0: 10 µs",
        "tuned, 1×64+8192: 30 µs",
    ]
    assert chart_of("up", {("tuned", "tuned"): {}}) is None

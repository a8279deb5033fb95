"""What people see of a run under way, off a terminal."""

from __future__ import annotations

import io

import pytest

from tuner.families.attention.problem import Stage
from tuner.families.fused_moe.problem import Gemm
from tuner.problems.points import Candidate, Config, Part, Point
from tuner.problems.results import Compiled, Measurement, Status, Trial
from tuner.tuning import progress


def trial(point: Point, us: float | None) -> Trial:
    status = Status.OK if us else Status.CRASHED
    return Trial(Candidate(point, Config({"X": 1})), Compiled(Status.OK), Measurement(status, us))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    monkeypatch.setattr(progress, "PLAIN_EVERY_S", 0.0)  # a line for each trial
    return io.StringIO()


@pytest.mark.parametrize(
    ("parts", "tokens", "shown"),
    [
        ((Gemm.UP, Gemm.DOWN), (), "M=4: 3 of 6, best up 2.0 + down 7.0 us"),
        ((Stage.DECODE, Stage.REDUCE), (1, 8192), "4x1+8192: 3 of 6, best decode 2.0 + reduce 7.0"),
    ],
)
def test_a_line_has_the_best_of_each_part_at_its_size(
    lines: io.StringIO, parts: tuple[Part, Part], tokens: tuple[int, ...], shown: str
) -> None:
    first, second = (Point(4, part, *tokens) for part in parts)
    shows = progress.Progress(lines, {first.size: 6})
    for point, us in ((first, 3.0), (second, 7.0), (first, 2.0)):
        shows(trial(point, us))
    assert lines.getvalue().splitlines()[-1].startswith("3 of 6 tried, about ")
    assert shown in lines.getvalue().splitlines()[-1]


def test_what_is_only_compiled_is_not_counted(lines: io.StringIO) -> None:
    shows = progress.Progress(lines, {"M=4": 6})
    shows(trial(Point(8, Gemm.UP), None))
    assert lines.getvalue() == ""

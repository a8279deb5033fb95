"""What people see of a run under way, on a terminal and off it."""

import io
import itertools
import re
import threading
from collections.abc import Iterable, Sequence

import pytest

from tuner.families.attention.problem import AttentionPart
from tuner.families.fused_moe.problem import Gemm
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, Measurement, Status, Trial
from tuner.tuning import progress
from tuner.tuning.progress import Counts, LiveLine, Progress, duration

POINT = Point(4, Gemm.UP)


def candidate(point: Point, number: int = 1) -> Candidate:
    return Candidate(point, Config({"X": number}))


def trial(point: Point, us: float | None, number: int = 1) -> Trial:
    status = Status.OK if us else Status.CRASHED
    return Trial(candidate(point, number), Compiled(Status.OK), Measurement(status, us))


def add(counts: Counts, times: Iterable[float], first: int = 0) -> None:
    """Trials at one point, from this number on, that end at these times."""
    for number, now in enumerate(times, first):
        counts.add(trial(POINT, 2.0, number), now)


@pytest.mark.parametrize(
    ("parts", "tokens", "shown"),
    [
        ((Gemm.UP, Gemm.DOWN), (), "M=4: up 2.0 + down 7.0 us"),
        (
            (AttentionPart.DECODE, AttentionPart.REDUCE),
            (1, 8192),
            "4x1+8192: decode 2.0 + reduce 7.0 us",
        ),
    ],
)
def test_a_line_has_the_best_of_each_part_at_its_size(parts, tokens, shown):
    first, second = (Point(4, part, *tokens) for part in parts)
    counts = Counts({first.size: 6})
    for point, us in ((first, 3.0), (second, 7.0), (first, 2.0)):
        counts.add(trial(point, us), 0.0)
    assert counts.text(0.0) == f"3 of 6 tried; {shown}"


def test_what_is_only_compiled_counts_and_has_no_best():
    counts = Counts({"M=4": 6})
    counts.ask([candidate(Point(8, Gemm.UP)), candidate(Point(4, Gemm.UP))], [])
    counts.add(trial(Point(8, Gemm.UP), None), 0.0)
    assert counts.text(0.0) == "1 of 7 tried or checked"


def test_more_candidates_than_foreseen_make_the_total_larger():
    counts = Counts({POINT.size: 3})
    for number in range(40):
        counts.ask([candidate(POINT, number)], [])
        add(counts, [float(number)], number)
        assert counts.done <= counts.total
    assert counts.text(40.0).startswith("40 of 40 tried")


def test_a_list_of_candidates_has_an_exact_total():
    points = [Point(4, Gemm.UP), Point(8, Gemm.UP)]  # the second one is not tuned
    listed = [candidate(point, number) for point in points for number in range(9)]
    counts = Counts({points[0].size: 3})
    counts.expect(listed)
    totals = [counts.total]
    for one in listed:
        counts.ask([one], [])
        counts.add(Trial(one, Compiled(Status.OK), Measurement(Status.OK, 1.0)), 0.0)
        totals.append(counts.total)
    assert set(totals) == {18}
    assert counts.done == 18


def test_stored_trials_are_named_and_do_not_speed_up_the_time_left():
    counts = Counts({POINT.size: 720})
    stored = [trial(POINT, 2.0, number) for number in range(524)]
    counts.ask([candidate(POINT, number) for number in range(524, 720)], stored)
    assert counts.text(0.0) == "524 of 720 tried (524 stored); M=4: up 2.0 us"
    add(counts, range(100, 111), 524)  # one a second, after the first
    assert counts.text(110.0).startswith("535 of 720 tried (524 stored), about 3 min left")


@pytest.mark.parametrize("start_s", [0.0, 47.0, 600.0])
def test_a_slow_start_is_not_taken_for_the_rate(start_s):
    counts = Counts({POINT.size: 720})
    counts.ask([candidate(POINT, number) for number in range(720)], [])
    for number in range(720):
        now = start_s + number * 0.5
        add(counts, [now], number)
        left = counts.left_s(now)
        if left is not None:
            assert left == pytest.approx((719 - number) * 0.5)
    assert counts.left_s(start_s + 360) == 0.0


def test_no_time_left_is_told_while_little_is_known():
    counts = Counts({POINT.size: 720})
    add(counts, range(0, 90, 10))
    assert counts.left_s(1000.0) is None
    add(counts, [90.0], 9)
    assert counts.left_s(90.0) == pytest.approx(7100.0)
    together = Counts({POINT.size: 720})
    add(together, [50.0] * 400)  # answers of one poll
    assert together.left_s(52.9) is None


def test_a_line_fits_its_width():
    point = Point(128, AttentionPart.DECODE, 1, 131072)
    counts = Counts({point.size: 33911})
    for number in range(12):
        counts.add(trial(point, 12345.6, number), float(number))
    for width in (79, 60, 40, 20):
        assert len(counts.text(12.0, width)) <= width
    assert counts.text(12.0, 40) == "12 of 33911 tried, about 10.3 h left"


def test_trials_that_get_slower_are_not_told_at_the_rate_of_the_quick_ones():
    counts = Counts({POINT.size: 400})
    # The first hundred take 0.1 s each, the others 4 s.
    add(counts, [*(n * 0.1 for n in range(100)), *(10.0 + n * 4.0 for n in range(100))])
    assert counts.left_s(406.0) == pytest.approx(800.0)


def test_the_time_of_the_problems_that_come_later_is_told_too():
    counts = Counts({POINT.size: 40}, later=100)
    add(counts, range(20))
    said = "20 of 40 tried, about 20 s left, 2 min for all problems; M=4"
    assert counts.text(19.0).startswith(said)


def test_a_log_has_few_lines_and_is_not_silent_for_long():
    def lines(seconds: float) -> int:
        passed, count = 0.0, 0
        while passed < seconds:
            passed, count = passed + progress.plain_pause_s(passed), count + 1
        return count

    assert lines(20.0) in range(8, 12)
    assert lines(404.0) < 30
    assert lines(777.0) < 45
    assert progress.plain_pause_s(1e6) == progress.PLAIN_LATER_S


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (99, "99 s"), (100, "2 min"), (5990, "100 min"), (9e3, "2.5 h")],
)
def test_durations_in_the_unit_that_people_say(seconds, said):
    assert duration(seconds) == said


class _Lines(io.StringIO):
    """A log that says when it has a word several times."""

    def __init__(self, word: str, times: int) -> None:
        super().__init__()
        self.enough, self._word, self._times = threading.Event(), word, times

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.getvalue().count(self._word) >= self._times:
            self.enough.set()
        return written


def test_a_log_gets_lines_though_no_trial_ends(monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_EVERY_S", 0.001)
    log = _Lines("choosing", times=4)
    shown = Progress(log, {"M=4": 6}, "problem 2 of 3: ")
    shown.step("choosing configurations to compile")
    assert log.enough.wait(60)
    shown.close()
    told = [line for line in log.getvalue().splitlines() if "choosing" in line]
    line = "problem 2 of 3: choosing configurations to compile"
    assert told[0] == line
    assert set(told[1:]) == {f"{line}, 0 s so far"}  # no line is written twice as it was


def test_a_log_that_is_closed_stops_nothing(monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_EVERY_S", 0.001)
    log = io.StringIO()
    shown = Progress(log, {"M=4": 6})
    log.close()
    shown.tried(trial(POINT, 1.0))
    shown.close()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _drawn(terminal: _Terminal) -> Sequence[str]:
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    return [line for line in re.split(r"[\r\n]+", plain) if line.strip()]


def test_a_terminal_gets_one_line_that_fits_and_goes(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    terminal = _Terminal()
    shown = Progress(terminal, {POINT.size: 30, "M=8": 30})
    for number in range(25):
        shown.tried(trial(POINT, 12.5, number))
    shown.close()
    lines = _drawn(terminal)
    assert any("25 of 60 tried" in line for line in lines)
    assert all(len(line.rstrip()) <= 80 for line in lines)
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is wiped


def test_a_line_that_has_no_total_is_shown_too(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    terminal = _Terminal()
    seconds = itertools.count()
    line = LiveLine(terminal, lambda width: f"compiling, {next(seconds)} s so far")
    line.close()
    assert any("compiling, " in one for one in _drawn(terminal))

"""Show a run under way: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task
from rich.progress import Progress as Bars
from rich.progress_bar import ProgressBar
from rich.table import Column
from rich.text import Text

from tuner.compile import KernelCompiler
from tuner.problems.points import TRITON, Candidate, Part
from tuner.problems.registry import parts
from tuner.problems.results import Trial
from tuner.tuning.tune import Watcher

# Off a terminal: seconds until the first line, and the most between two lines. A line comes once a
# fifth more time has passed, so a log of seven minutes has fewer than thirty lines.
PLAIN_EVERY_S, PLAIN_LATER_S, PLAIN_SHARE = 2.0, 30.0, 0.2
# The time left is told once so many trials have ended, over so many seconds after the first trial.
# The first trial waits for processes that start, so it says nothing about the others. If trials get
# slower, as larger sizes are reached, the newest trials tell more than all trials: of both rates,
# the slower counts.
RATED_TRIALS, RATED_S = 10, 3.0
NEWEST = 50  # trials
WIDTH = 79
_BAR = 18


class Counts:
    """The numbers of tried and left candidates of a run. All times are seconds of one clock."""

    def __init__(self, tries: Mapping[str, int], later: int = 0) -> None:
        """Take the limits of the run.

        `tries`: the most configurations to try at each size (`Point.size`); `later`: in the
        problems that come after this problem.
        """
        self._later = later
        self._tries = tries
        self._bound = sum(tries.values())
        self._expected = 0  # the number of candidates, once all of them are known
        self._asked = self._others = 0  # `_others`: at sizes that are not tuned, only compiled
        self.stored = self.done = 0  # answered by the store, and all that were answered
        self._first_s: float | None = None  # when the first trial ended
        self._ends: deque[float] = deque(maxlen=NEWEST)  # when the newest trials ended
        self._step = ""
        self._now = ""  # the size of the newest trial
        self._best_us: dict[str, dict[Part, float]] = {size: {} for size in tries}

    def step(self, text: str) -> None:
        self._step = text

    def expect(self, candidates: Collection[Candidate]) -> None:
        self._expected = len(candidates)

    def ask(self, fresh: Collection[Candidate], stored: Collection[Trial]) -> None:
        self._asked += len(fresh) + len(stored)
        others = [c for c in fresh if c.point.size not in self._tries]
        others += [t.candidate for t in stored if t.candidate.point.size not in self._tries]
        self._others += len(others)
        self.stored += len(stored)
        self.done += len(stored)
        for trial in stored:
            self._note(trial)

    def add(self, trial: Trial, now_s: float) -> None:
        self.done += 1
        if self._first_s is None:
            self._first_s = now_s
        self._ends.append(now_s)
        self._note(trial)

    def _note(self, trial: Trial) -> None:
        point, time_us = trial.candidate.point, trial.measurement.median_us
        tuned = trial.candidate.backend == TRITON
        if time_us is None or not tuned or point.size not in self._tries:
            return
        best = self._best_us[point.size]
        best[point.part] = min(time_us, best.get(point.part, time_us))
        self._now = point.size

    @property
    def total(self) -> int:
        """Return the number of trials: exact once all are known, before that the upper limit."""
        return max(self._expected or self._bound + self._others, self._asked, self.done)

    def left_s(self, now_s: float) -> float | None:
        """Return the seconds until the last trial, at the rate so far; None while too little is
        known.
        """
        tried = self.done - self.stored
        if self._first_s is None or tried < RATED_TRIALS or now_s - self._first_s < RATED_S:
            return None
        return self._trial_s(self._first_s, now_s) * (self.total - self.done)

    def _trial_s(self, first_s: float, now_s: float) -> float:
        """Return the seconds per trial: of all trials or of the newest trials,
        whichever is slower.
        """
        trial_s = (now_s - first_s) / (self.done - self.stored - 1)
        if len(self._ends) == NEWEST:
            trial_s = max(trial_s, (now_s - self._ends[0]) / (NEWEST - 1))
        return trial_s

    def text(self, now_s: float, width: int = WIDTH, *, waits: bool = False) -> str:
        """Say the state in one line: "24 of 80 tried, about 9 s left; M=64: up 2.1 + down 1.4 us".

        `waits`: the rest depends on another process, so nobody knows how long it takes.
        """
        if self._step:
            return self._step[:width]
        line = f"{self.done} of {self.total} tried" + " or checked" * bool(self._others)
        if self.stored:
            line += f" ({self.stored} stored)"
        left_s = None if waits else self.left_s(now_s)
        if waits:
            line += ", waits for another process that compiles the rest"
        if left_s is not None:
            line += f", about {duration(left_s)} left"
        if left_s is not None and self._later and self._first_s is not None:
            all_s = left_s + self._trial_s(self._first_s, now_s) * self._later
            line += f", {duration(all_s)} for all problems"
        best = self._best_us.get(self._now, {})
        times = " + ".join(f"{part.value} {best[part]:.1f}" for part in parts() if part in best)
        more = f"{line}; {self._now}: {times} us" if times else line
        return (more if len(more) <= width else line)[:width]


def duration(seconds: float) -> str:
    """Write a duration in its usual unit: "40 s", "12 min", "2.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def plain_pause_s(passed_s: float) -> float:
    """Return the seconds until a log's next line, from the seconds since its first line."""
    return min(max(PLAIN_EVERY_S, PLAIN_SHARE * passed_s), PLAIN_LATER_S)


class LiveLine:
    """A text that is shown and refreshed until `close`.

    A terminal gets one line that is redrawn. Other streams get a line every few seconds.
    """

    def __init__(
        self,
        stream: TextIO,
        text: Callable[[int], str],
        done: Callable[[], tuple[int, int]] | None = None,
        since: float | None = None,
        every_s: float | None = None,
    ) -> None:
        """Begin to show the text.

        `text` gets the columns that it may fill; `done` returns the work done and the total.
        `since`: when the command began, by `time.monotonic`, if it wrote other lines before;
        `every_s`: seconds between two lines, if lines shall not become rarer.
        """
        self._every_s = every_s
        self._began = time.monotonic() if since is None else since
        self._stream, self._text = stream, text
        self._closed = threading.Event()
        self._bars = _bars(stream, text, done) if stream.isatty() else None
        if self._bars:
            self._bars.start()
            return
        self._thread = threading.Thread(target=self._write_lines, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and remove the line from a terminal."""
        self._closed.set()
        if self._bars:
            self._bars.stop()
        else:
            self._thread.join()

    def _write_lines(self) -> None:
        before = ""
        while not self._closed.wait(self._every_s or plain_pause_s(time.monotonic() - self._began)):
            line, passed_s = self._text(WIDTH), time.monotonic() - self._began
            # A line that says nothing new would read as a second start.
            more = f", {duration(passed_s)} so far" if line == before else ""
            before = line
            try:
                self._stream.write(line[: WIDTH - len(more)] + more + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # nobody reads it any more
                return


class Progress(Watcher):
    """A watcher that shows a run's trials and steps.

    `heading` stands before each line ("problem 2 of 3: ").
    """

    def __init__(
        self,
        stream: TextIO,
        tries: Mapping[str, int],
        heading: str = "",
        later: int = 0,
        since: float | None = None,
    ) -> None:
        """Begin to show the run; `later` is for `Counts`, and `since` for `LiveLine`."""
        self._lock = threading.Lock()
        self._heading = heading
        self._counts = Counts(tries, later)
        self._compiler: KernelCompiler | None = None
        self._line = LiveLine(stream, self._text, self._done, since)

    def compiles(self, compiler: KernelCompiler) -> None:
        with self._lock:
            self._compiler = compiler

    def tried(self, trial: Trial) -> None:
        with self._lock:
            self._counts.add(trial, time.monotonic())

    def step(self, text: str) -> None:
        with self._lock:
            self._counts.step(text)

    def expected(self, candidates: Collection[Candidate]) -> None:
        with self._lock:
            self._counts.expect(candidates)

    def asked(self, fresh: Collection[Candidate], stored: Collection[Trial]) -> None:
        with self._lock:
            self._counts.ask(fresh, stored)

    def close(self) -> None:
        self._line.close()

    def _text(self, width: int) -> str:
        with self._lock:
            waits = self._compiler is not None and self._compiler.waits
            left = width - len(self._heading)
            line = self._counts.text(time.monotonic(), left, waits=waits)
        return self._heading + line

    def _done(self) -> tuple[int, int]:
        with self._lock:
            return self._counts.done, self._counts.total


class _Line(ProgressColumn):
    """The text, in the columns that the bar leaves free."""

    max_refresh = None

    def __init__(self, text: Callable[[int], str], columns: int) -> None:
        super().__init__(Column(no_wrap=True, overflow="ellipsis"))
        self._shown, self._columns = text, columns

    def render(self, task: Task) -> Text:
        return Text(self._shown(self._columns), no_wrap=True, overflow="ellipsis")


class _Bar(BarColumn):
    """A bar that asks for the work done whenever it is drawn."""

    def __init__(self, done: Callable[[], tuple[int, int]]) -> None:
        super().__init__(bar_width=_BAR)
        self._done = done

    def render(self, task: Task) -> ProgressBar:
        task.completed, task.total = self._done()
        return super().render(task)


def _bars(
    stream: TextIO, text: Callable[[int], str], done: Callable[[], tuple[int, int]] | None
) -> Bars:
    console = Console(file=stream)
    bar = [_Bar(done)] if done else []
    left = console.width - 3 - (_BAR + 1 if done else 0)
    bars = Bars(SpinnerColumn(), *bar, _Line(text, left), console=console, transient=True)
    bars.add_task("", total=None)
    return bars

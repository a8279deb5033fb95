"""Show progress: one live line per size on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from tuner.problems.points import Part
from tuner.problems.registry import parts
from tuner.problems.results import Trial

PLAIN_EVERY_S = 5.0


class Progress:
    """Call it with every trial; it writes to a terminal or a log.

    `tries` is the number of configurations that may be tried at each size (`Point.size`), summed
    over parts, in the order to show.
    """

    def __init__(self, stream: TextIO, tries: Mapping[str, int]) -> None:
        self._stream = stream
        self._tries = tries
        self._done = dict.fromkeys(tries, 0)
        self._best_us: dict[str, dict[Part, float]] = {size: {} for size in tries}
        self._started = self._shown = time.monotonic()
        self._bars = _bars(stream, max(map(len, tries), default=0)) if stream.isatty() else None
        self._tasks = {}
        if self._bars:
            self._bars.start()
            self._tasks = {
                size: self._bars.add_task(size, total=total, best="")
                for size, total in tries.items()
            }

    def __call__(self, trial: Trial) -> None:
        point, time_us = trial.candidate.point, trial.measurement.median_us
        size = point.size
        if size not in self._tries:
            return  # only compiled, not tuned
        self._done[size] += 1
        if time_us is not None:
            best = self._best_us[size]
            best[point.part] = min(time_us, best.get(point.part, time_us))
        if self._bars:
            self._bars.update(self._tasks[size], advance=1, best=self._best(size))
        elif time.monotonic() - self._shown >= PLAIN_EVERY_S:
            self._shown = time.monotonic()
            self._stream.write(self._line(size) + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Stop updating; the live lines stay on the screen."""
        if self._bars:
            self._bars.stop()

    def _best(self, size: str) -> str:
        """The best time of each part in microseconds, e.g. "up 12.3 + down 4.5 us"."""
        best = self._best_us[size]
        times = [f"{part.value} {best[part]:.1f}" for part in parts() if part in best]
        return " + ".join(times) + " us" if times else ""

    def _line(self, size: str) -> str:
        done, total = sum(self._done.values()), sum(self._tries.values())
        passed_s = time.monotonic() - self._started
        left_s = passed_s * max(total - done, 0) / done
        here = f"{size}: {self._done[size]} of {self._tries[size]}, best {self._best(size)}"
        return f"{done} of {total} tried, about {left_s:.0f} s left; {here}"


def _bars(stream: TextIO, width: int) -> Bars:
    return Bars(
        TextColumn(f"{{task.description:>{max(width, 7)}}}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[best]}"),
        TimeRemainingColumn(),
        console=Console(file=stream),
    )

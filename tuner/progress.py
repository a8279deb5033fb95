"""Progress for people: a live line a batch size on a terminal, plain lines off it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from tuner.problems import Gemm
from tuner.results import Trial

PLAIN_EVERY_S = 5.0


class Progress:
    """Called with every trial; writes to a terminal or a log.

    `tries`: how many configurations each batch size may be tried with, all gemms together.
    """

    def __init__(self, stream: TextIO, tries: Mapping[int, int]) -> None:
        self._stream = stream
        self._tries = tries
        self._done = dict.fromkeys(tries, 0)
        self._best_us: dict[int, dict[Gemm, float]] = {size: {} for size in tries}
        self._started = self._shown = time.monotonic()
        self._bars = _bars(stream) if stream.isatty() else None
        self._tasks = {}
        if self._bars:
            self._bars.start()
            self._tasks = {
                size: self._bars.add_task(f"M={size}", total=total, best="")
                for size, total in sorted(tries.items())
            }

    def __call__(self, trial: Trial) -> None:
        point, time_us = trial.candidate.point, trial.measurement.median_us
        size = point.batch_size
        if size not in self._tries:
            return  # compiled only, to fill the file
        self._done[size] += 1
        if time_us is not None:
            best = self._best_us[size]
            best[point.gemm] = min(time_us, best.get(point.gemm, time_us))
        if self._bars:
            self._bars.update(self._tasks[size], advance=1, best=self._best(size))
        elif time.monotonic() - self._shown >= PLAIN_EVERY_S:
            self._shown = time.monotonic()
            self._stream.write(self._line(size) + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Leave the live lines as they stand."""
        if self._bars:
            self._bars.stop()

    def _best(self, size: int) -> str:
        """Microseconds of each gemm's best, e.g. "up 12.3 + down 4.5 us"."""
        best = sorted(self._best_us[size].items(), reverse=True)
        return " + ".join(f"{gemm.value} {us:.1f}" for gemm, us in best) + " us" if best else ""

    def _line(self, size: int) -> str:
        done, total = sum(self._done.values()), sum(self._tries.values())
        passed_s = time.monotonic() - self._started
        left_s = passed_s * max(total - done, 0) / done
        here = f"M={size}: {self._done[size]} of {self._tries[size]}, best {self._best(size)}"
        return f"{done} of {total} tried, about {left_s:.0f} s left; {here}"


def _bars(stream: TextIO) -> Bars:
    return Bars(
        TextColumn("{task.description:>7}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[best]}"),
        TimeRemainingColumn(),
        console=Console(file=stream),
    )

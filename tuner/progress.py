"""Progress for people: a live line a batch size on a terminal, plain lines off it."""

from __future__ import annotations

import time
from typing import TextIO

from tuner.results import Trial

PLAIN_EVERY_S = 5.0


class Progress:
    """Called with every trial; writes to a terminal or a log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._tried = 0
        self._timed = 0
        self._best_us: dict[str, float] = {}
        self._shown = time.monotonic()

    def __call__(self, trial: Trial) -> None:
        self._tried += 1
        time_us = trial.measurement.median_us
        if time_us is not None:
            self._timed += 1
            at = str(trial.candidate.point)
            self._best_us[at] = min(time_us, self._best_us.get(at, time_us))
        now = time.monotonic()
        if now - self._shown >= (0.1 if self._live else PLAIN_EVERY_S):
            self._shown = now
            self._show(str(trial.candidate.point))

    def _show(self, at: str) -> None:
        best = f", best {self._best_us[at]:.1f} us" if at in self._best_us else ""
        line = f"{self._tried} configurations tried, {self._timed} timed; {at}{best}"
        self._stream.write(f"\r\x1b[K{line}" if self._live else f"{line}\n")
        self._stream.flush()

    def close(self) -> None:
        """Clear the live line."""
        if self._live:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

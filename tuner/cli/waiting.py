"""A line on stderr while a command works on something that it cannot count."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say what is being done, and for how long, while the block runs."""
    from tuner.tuning.progress import LiveLine, duration

    started = time.monotonic()

    def text(width: int) -> str:
        return f"{what}, {duration(time.monotonic() - started)} so far"[:width]

    line = LiveLine(sys.stderr, text)
    try:
        yield
    finally:
        line.close()

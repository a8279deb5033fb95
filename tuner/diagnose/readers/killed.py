"""Whether a shell says that a server was killed, which no traceback tells."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.diagnose.readers.reading import Reading, Whole, of_load

# bash: `Killed`, or `start.sh: line 3: 12345 Killed  python -m ...`; zsh: `[1] 12345 killed`.
_KILLED = re.compile(
    r"^\s*(?:\[\d+\]\s+)?(?:\S+: line \d{1,6}:\s+)?(?:\d{1,8}\s+)?[Kk]illed(?:\s{2,}\S.*)?\s*$"
)


@dataclass
class KilledReader:
    """Keeps the last line of a shell that says so."""

    opens: Sequence[bytes] = (b"Killed", b"killed")
    marks: Sequence[bytes] = (b"Killed", b"killed")
    _where: str = ""

    def read(self, line: str, where: str) -> None:
        if _KILLED.match(line):
            self._where = where

    def told(self, whole: Whole) -> Iterator[Reading]:
        """Yield what the kill means, if no message says why the server stopped."""
        if self._where and not (whole.stops or whole.failed):
            yield of_load("killed", self._where, "", {})

"""Whether requests of vLLM's offline inference end, by its progress bar."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.diagnose.readers.reading import HANG_MARKS, HANGS, Reading, Whole, of_load

_BAR = re.compile(r"Processed prompts:\s*\d{1,3}%.*?\b(\d{1,9})/(\d{1,9}) \[")


@dataclass
class OfflineReader:
    """Keeps the last state of the bar."""

    opens: Sequence[bytes] = (b"Processedprompts:",)
    marks: Sequence[bytes] = (b"Processedprompts:", *HANG_MARKS)
    _done: int = 0
    _all: int = 0
    _where: str = ""
    _hangs: bool = False  # somebody says so

    def read(self, line: str, where: str) -> None:
        self._hangs = self._hangs or bool(HANGS.search(line))
        for match in _BAR.finditer(line):  # a terminal's line may hold all its states
            self._done, self._all = int(match[1]), int(match[2])
            self._where = where

    def told(self, whole: Whole) -> Iterator[Reading]:
        """Yield what the bar counts, if somebody says that it hangs and nothing else says why."""
        if self._hangs and self._done < self._all and not (whole.failed or whole.explained):
            values = {"done": self._done, "all": self._all}
            when = [] if self._done else ["one" if self._all == 1 else "none"]
            yield of_load("prompts_open", self._where, "vllm", values, *when)

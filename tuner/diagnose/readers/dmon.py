"""What `nvidia-smi dmon` shows of GPUs at work: held below their clocks, or waiting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tuner.diagnose.readers.reading import Reading, Whole, of_load

_HEADER = re.compile(r"^\W*#\s*gpu\s+(\w[\w\s]*)$")
_ROW = re.compile(r"^\s*(\d{1,3})((?:\s+(?:\d{1,7}|-)){2,40})\s*$")
_MOST_ROWS = 10_000
_HELD = 20  # % of the time that the power limit holds the clocks
_BUSY = 90  # % of the time a kernel runs


@dataclass
class DmonReader:
    """Keeps the rows of each GPU, by the columns that the header names."""

    opens: Sequence[bytes] = (b"#gpu",)
    marks: Sequence[bytes] = (b"#gpu", *(b"%d" % digit for digit in range(10)))
    _columns: Sequence[str] = ()
    _rows: dict[str, list[Mapping[str, int]]] = field(default_factory=dict)
    _where: str = ""

    def read(self, line: str, where: str) -> None:
        if match := _HEADER.match(line):
            self._columns = match[1].split()
        elif self._columns and (match := _ROW.match(line)):
            cells = match[2].split()
            rows = self._rows.setdefault(match[1], [])
            if len(cells) == len(self._columns) and len(rows) < _MOST_ROWS:
                named = zip(self._columns, cells, strict=True)
                rows.append({name: int(cell) for name, cell in named if cell != "-"})
                self._where = where

    def told(self, whole: Whole) -> Iterator[Reading]:
        """GPUs that power or heat holds, and GPUs that are busy and read no memory."""
        power = self._those(lambda row: row.get("pviol", 0) >= _HELD)
        heat = self._those(lambda row: bool(row.get("tviol", 0)))
        if power or heat:
            values = {
                name: ", ".join(gpus) for name, gpus in (("power", power), ("heat", heat)) if gpus
            }
            yield of_load("dmon_held", self._where, "", values)
        waits = self._those(lambda row: row.get("sm", 0) >= _BUSY and row.get("mem", 100) == 0)
        if waits:
            yield of_load("dmon_waits", self._where, "", {"waits": ", ".join(waits)})

    def _those(self, holds: Callable[[Mapping[str, int]], bool]) -> list[str]:
        """The GPUs of which most rows are so."""
        return [gpu for gpu, rows in self._rows.items() if 2 * sum(map(holds, rows)) > len(rows)]

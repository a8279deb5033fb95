"""What `nvidia-smi --query-gpu=... --format=csv` shows beside each other: a GPU that is slower."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tuner.diagnose.readers.reading import Reading, Whole, of_load

_HEADER = re.compile(r"^\s*(?:[\w.]+(?: \[[\w.%]+\])?,\s*)+[\w.]+(?: \[[\w.%]+\])?\s*$")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_CLOCK, _MOST = ("clocks.sm", "clocks.current.sm"), ("clocks.max.sm",)
_HELD = 0.8  # of the fastest GPU's clock
_BUSY_P = ("P0", "P1", "P2")
_MOST_GPUS = 1024


@dataclass
class QueryReader:
    """Keeps the last row of each GPU, by the columns that the header names."""

    opens: Sequence[bytes] = (b"clocks.sm", b"clocks.current.sm", b"pcie.link.width.current")
    marks: Sequence[bytes] = (b",",)
    _columns: Sequence[str] = ()
    _rows: dict[str, Mapping[str, str]] = field(default_factory=dict)
    _where: str = ""

    def read(self, line: str, where: str) -> None:
        cells = [cell.strip() for cell in line.split(",")]
        if _HEADER.match(line) and any("." in cell for cell in cells):
            self._columns = [cell.partition(" ")[0] for cell in cells]
        elif self._columns and len(cells) == len(self._columns) and len(self._rows) < _MOST_GPUS:
            row = dict(zip(self._columns, cells, strict=True))
            self._rows[row.get("index") or row.get("pci.bus_id") or str(len(self._rows))] = row
            self._where = where

    def told(self, whole: Whole) -> Iterator[Reading]:
        """A GPU at work whose clock is far below another one's, and links of fewer lanes."""
        clocks = {
            gpu: clock
            for gpu, row in self._rows.items()
            if row.get("pstate", "P0") in _BUSY_P and (clock := _value(row, _CLOCK))
        }
        top = max(clocks.values(), default=0.0)
        slow = {gpu: clock for gpu, clock in clocks.items() if clock < _HELD * top}
        if slow:
            listed = ", ".join(
                f"GPU {gpu}: {_shown(self._rows[gpu], clock)}" for gpu, clock in slow.items()
            )
            yield of_load("clocks_differ", self._where, "", {"listed": listed, "top": top})
        few = [
            f"GPU {gpu}: x{now:.0f} of x{most:.0f}"
            for gpu, row in self._rows.items()
            if (now := _value(row, ("pcie.link.width.current",)))
            and (most := _value(row, ("pcie.link.width.max",)))
            and now < most
        ]
        if few:
            yield of_load("pcie_few_lanes", self._where, "", {"listed": "; ".join(few)})


def _value(row: Mapping[str, str], names: Sequence[str]) -> float:
    match = next((_NUMBER.match(row[name]) for name in names if name in row), None)
    return float(match[0]) if match else 0.0


def _shown(row: Mapping[str, str], clock: float) -> str:
    heat = _value(row, ("temperature.gpu",))
    return f"{clock:,.0f} MHz{f' at {heat:.0f} degrees C' if heat else ''}"

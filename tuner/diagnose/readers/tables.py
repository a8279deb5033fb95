"""Tables of nccl-tests that are mixed: each process of a run has printed its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tuner.diagnose.readers.reading import Reading, Whole
from tuner.diagnose.table import Kind

_DEVICES = "Using devices"
_RANK_0 = re.compile(r"\bRank\s+0\s+(?:Group\s+\d+\s+)?Pid\s+(\d+)\s+on\b")
# Size, count, type, operation, and a root or (in old releases) the time.
_ROW = re.compile(
    r"(?:^|[\s>])(\d+)\s+(\d+)\s+(b?float\d*|half|double|u?int\d+|f8\w+|fp8\w+)\s+(\w+)\s+-?\d+(?:\.\d+)?(?:\s|\[)"
)
_OPENS = (b"Usingdevices", b"Avgbusbandwidth", b"algbwbusbw")
_LEAST = 2  # sizes that come again: a run of one size may have several cycles


@dataclass
class TableReader:
    """Looks for rows and ranks that one communicator would print once."""

    opens: Sequence[bytes] = _OPENS
    marks: Sequence[bytes] = (
        *(b"Usingdevices", b"Rank0", b"algbw", b"Avgbus", b"float", b"half", b"double"),
        *(b"int8", b"int32", b"int64", b"f8e", b"fp8"),
    )
    _log: str = ""
    _listed: set[str] = field(default_factory=set)  # processes with a rank 0 in one list
    _apart: int = 0  # the most of these
    _kind: tuple[str, ...] = ()  # type and operation of the table
    _sizes: list[int] = field(default_factory=list)  # of its rows, from the first
    _again: set[int] = field(default_factory=set)
    _where: str = ""

    def read(self, line: str, where: str) -> None:
        log = where.rpartition(":")[0]
        if log != self._log:  # runs of two nodes, one after the other
            self._log, self._sizes = log, []
            self._listed.clear()
        if _DEVICES in line:
            self._listed.clear()
            self._sizes = []
        elif "algbw" in line or "Avg bus" in line:  # a table begins or ends
            self._sizes = []
        elif match := _RANK_0.search(line):
            self._listed.add(match[1])
            if len(self._listed) > self._apart:
                self._apart = len(self._listed)
                self._where = where if self._apart > 1 else self._where
        elif match := _ROW.search(line):
            self._see_row(int(match[1]), match.group(3, 4), where)

    def _see_row(self, size: int, kind: tuple[str, ...], where: str) -> None:
        """In one table, sizes rise; the next cycle, type or root begins with the first again."""
        if kind != self._kind or not self._sizes:
            self._kind, self._sizes = kind, [size, size]
            return
        first, last = self._sizes
        if first < size <= last:
            self._again.add(size)
            self._where = self._where or where
        self._sizes = [first, size]

    def told(self, whole: Whole) -> Iterator[Reading]:
        """That the processes were alone, if at least two tables are mixed."""
        if self._apart < 2 and len(self._again) < _LEAST:
            return
        shown = (
            f"One list of devices has rank 0 of {self._apart} processes."
            if self._apart > 1
            else "The rows of two or more tables are mixed: a size comes again before a table ends."
        )
        yield Reading(
            "nccl_tests_apart",
            Kind.NOTE,
            "the processes of nccl-tests did not join one communicator",
            self._where,
            [
                f"{shown} So each process ran alone, and measured only its own GPUs.",
                "These numbers say nothing of the links between the processes, neither that they "
                "are fast nor that they are slow.",
            ],
            [
                "Most often nccl-tests was built without MPI. On each node, build it anew with the "
                "same MPI as `mpirun`, and run it again:",
                "$ make clean && make MPI=1 MPI_HOME=/path/to/mpi",
                "If it is built so, the launcher is of another MPI: use the `mpirun` of that MPI; "
                "srun may need --mpi=pmix.",
                "In a joined run there is one table, one rank 0, and one line with the average.",
            ],
            {"processes": self._apart if self._apart > 1 else None, "again": sorted(self._again)},
        )

"""Read what a text shows besides messages: how far a start came, lines of load, stacks, tables.

A message is a line that means something by itself, and is a row of the tables beside. A reader
adds many lines up, and says what they show together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tuner.diagnose.readers.benchmark import BenchmarkReader
from tuner.diagnose.readers.counters import CounterReader
from tuner.diagnose.readers.dmon import DmonReader
from tuner.diagnose.readers.gdr import GdrReader
from tuner.diagnose.readers.host import HostReader
from tuner.diagnose.readers.killed import KilledReader
from tuner.diagnose.readers.load import LoadReader
from tuner.diagnose.readers.nvlink import NvlinkReader
from tuner.diagnose.readers.offline import OfflineReader
from tuner.diagnose.readers.p2p import P2pReader
from tuner.diagnose.readers.pcie import PcieReader
from tuner.diagnose.readers.query import QueryReader
from tuner.diagnose.readers.reading import Reader, Reading, Whole
from tuner.diagnose.readers.smi import SmiReader
from tuner.diagnose.readers.stacks import StackReader
from tuner.diagnose.readers.start import StartReader
from tuner.diagnose.readers.tables import TableReader
from tuner.engines.logs.workload import unwrapped

__all__ = ["Readers", "Reading", "Whole"]


def _readers() -> list[Reader]:
    return [
        StartReader(),
        LoadReader(),
        StackReader(),
        TableReader(),
        NvlinkReader(),
        GdrReader(),
        CounterReader(),
        P2pReader(),
        BenchmarkReader(),
        SmiReader(),
        OfflineReader(),
        DmonReader(),
        PcieReader(),
        KilledReader(),
        QueryReader(),
        HostReader(),
    ]


@dataclass
class Readers:
    """All readers, each of which gets the lines that hold a mark of it."""

    each: Sequence[Reader] = field(default_factory=_readers)
    _open: set[int] = field(default_factory=set)  # readers whose text may go on in the next part

    def read(
        self, lines: Sequence[bytes], squeezed: Sequence[bytes], name: str, first: int
    ) -> None:
        """Read lines of the log `name`, the first of which has the number `first`.

        `squeezed` are the same lines without blanks.
        """
        joined = b"\n".join(squeezed)
        for number, reader in enumerate(self.each):
            opens = any(mark in joined for mark in reader.opens)
            if opens or number in self._open:
                self._open ^= {number} if opens != (number in self._open) else set()
                for at, line in enumerate(squeezed):
                    if any(mark in line for mark in reader.marks):
                        text, *below = (
                            line.decode("utf-8", "replace") for line in lines[at : at + 4]
                        )
                        reader.read(unwrapped(text, below), f"{name}:{first + at}")

    def told(self, whole: Whole) -> Iterator[Reading]:
        """What the readers say of the whole text."""
        told = [one for reader in self.each for one in reader.told(whole)]
        if any(one.name.startswith("stack_") for one in told):  # it shows where a server waits
            served = any(one.figures.get("serves") for one in told)  # so the start had ended
            told = [
                one for one in told if one.name != "start_waits" or (one.figures and not served)
            ]
        if any(one.name == "collective_waits" for one in told):  # it says why the bar stands
            told = [one for one in told if one.name != "prompts_open"]
        yield from told

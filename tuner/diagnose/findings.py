"""What was found in logs, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tuner.diagnose.readers import Readers, Reading, Whole
from tuner.diagnose.table import Form, Kind, Message
from tuner.engines.logs.facts import Facts
from tuner.engines.logs.workload import read_load

_MOST_VALUES = 200  # distinct values of one message; a log may be made up
_MOST_RANKS = 4096
_FULL = 0.9  # of the KV cache


@dataclass(frozen=True)
class Frame:
    """A line of a traceback: `File "PATH", line 356, in FUNCTION`."""

    path: str
    line: int
    function: str


@dataclass
class LogFinding:
    """A message, at the place of its first occurrence."""

    message: Message
    form: Form
    values: Mapping[str, str]  # of the form's holes
    text: str  # the line
    where: str  # FILE:LINE
    frames: Sequence[Frame]  # of the traceback before it, the innermost last
    around: str = ""  # its lines as they are, a few before, and as many below as it asks for
    beside: Sequence[LogFinding] = ()  # it and others that have one answer
    count: int = 0
    ranks: dict[str, None] = field(default_factory=dict)  # in order

    def as_json(self) -> dict[str, Any]:
        return {
            "message": self.message.name,
            "kind": self.message.kind.value,
            "where": self.where,
            "text": self.text,
            "count": self.count,
            "ranks": list(self.ranks),
            "values": dict(self.values),
        }


@dataclass
class Findings:
    """Collects what a scan finds; the same message of many lines and ranks is one finding."""

    known: dict[tuple[str, ...], LogFinding] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)
    readers: Readers = field(default_factory=Readers)
    errors: dict[str, str] = field(default_factory=dict)  # exceptions that nothing explains
    frames: dict[str, Sequence[Frame]] = field(default_factory=dict)  # of the tracebacks of these
    lines: int = 0
    last_frames: Sequence[Frame] = ()  # of the last traceback
    cut: bool = False  # no line below them names the error
    loads: list[int] = field(default_factory=lambda: [0, 0])  # lines of load; and those that wait

    def add(self, new: LogFinding, rank: str) -> None:
        key = (
            new.message.name,
            *(_last_part(new.values.get(name, "")) for name in new.message.per),
        )
        if key not in self.known and len(self.known) >= _MOST_VALUES:
            key = (new.message.name,)
        found = self.known.setdefault(key, new)
        found.count += 1
        if rank and len(found.ranks) < _MOST_RANKS:
            found.ranks[rank] = None

    def full(self, line: str) -> bool:
        """Count a line of load. Whether requests wait there for room in the KV cache."""
        load = read_load(line)
        if load is None or load.waiting is None or load.used is None:
            return False
        waits = load.waiting > 0 and load.used >= _FULL
        self.loads[0] += 1
        self.loads[1] += waits
        return waits

    @property
    def names_no_error(self) -> bool:
        """Tell whether the last traceback is cut, and no earlier one ends in the same frame."""
        return self.cut and self.last_frames[-1:] not in [
            frames[-1:] for frames in self.frames.values()
        ]

    def add_error(self, text: str, where: str, frames: Sequence[Frame]) -> None:
        """Keep the first and the last exception that no message explains."""
        if frames:
            self.frames.setdefault(text, frames)
        if len(self.errors) < 2 or text in self.errors:
            self.errors.setdefault(text, where)
        else:
            self.frames.pop(self.errors.popitem()[0], None)
            self.errors[text] = where

    @cached_property
    def readings(self) -> list[Reading]:
        """What many lines show together, the worst first. Ask when all is read."""
        kinds = list(Kind)
        # A message that what the text shows has answered explains nothing.
        explained = any(
            one.message.kind in (Kind.STOPS, Kind.WAITS, Kind.FOLLOWS)
            and not self.facts.known.keys() & set(one.message.unless)
            for one in self.known.values()
        )
        told = self.readers.told(
            Whole(
                explained,
                bool(self.errors),
                any(one.message.kind is Kind.STOPS for one in self.known.values()),
                self.facts.trouble,
                frozenset(one.message.name for one in self.known.values()),
                frozenset(self.facts.known),
            )
        )
        return sorted(told, key=lambda one: kinds.index(one.kind))

    @property
    def found(self) -> list[LogFinding]:
        """The findings that say something new, the worst first, then in the log's order."""
        facts = self.facts.known.keys()
        found = [one.message for one in self.known.values() if not facts & set(one.message.unless)]
        names = {one.name for one in found}
        alone = len(names) == 1 and not self.readings
        sure = any(one.kind is Kind.STOPS and "stops" not in one.unless for one in found)
        # What the text shows may make a message say nothing new, as another message does.
        names |= facts | ({"stops"} if sure else set())
        names |= {"errors"} if self.errors else set()
        names |= {one.name for one in self.readings}
        names |= {"kv_room_left"} if 2 * self.loads[1] <= self.loads[0] else set()
        kinds = list(Kind)
        kept = [
            one
            for one in self.known.values()
            if not names & set(one.message.unless) and (alone or not one.message.alone)
        ]
        return sorted(kept, key=lambda one: kinds.index(one.message.kind))


def _last_part(path: str) -> str:
    """The end of a path: ranks on several nodes keep the same file in different folders."""
    return path.replace("\\", "/").rpartition("/")[2]

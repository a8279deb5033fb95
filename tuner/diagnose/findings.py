"""Hold the findings in logs, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tuner.diagnose.table import Form, Kind, Message
from tuner.engines.logs.facts import Facts
from tuner.engines.logs.words import Fact

_MOST_VALUES = 200  # distinct values of a message; a log may be made up
_MOST_RANKS = 4096


@dataclass(frozen=True)
class Frame:
    """Hold a line of a traceback: `File "PATH", line 356, in FUNCTION`."""

    path: str
    line: int
    function: str


@dataclass
class LogFinding:
    """Hold a message, at the place of its first occurrence."""

    message: Message
    form: Form
    values: Mapping[str, str]  # of the form's holes
    text: str  # the line
    where: str  # FILE:LINE
    frames: Sequence[Frame]  # of the traceback before it, the innermost last
    around: str = ""  # its lines as they are, a few before, and as many below as it asks for
    count: int = 0
    ranks: dict[str, None] = field(default_factory=dict)  # in order


@dataclass
class Findings:
    """Collect the findings of a scan; the same message of many lines and ranks is a single
    finding.
    """

    known: dict[tuple[str, ...], LogFinding] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)
    error: Fact | None = None  # the first exception that no message explains
    lines: int = 0

    def add(self, new: LogFinding, rank: str) -> None:
        """Count a message; lines of several ranks with the same values are a single finding."""
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

    @property
    def found(self) -> list[LogFinding]:
        """List the findings that say something new, the worst first, then in the log's order."""
        kinds, names = list(Kind), {one.message.name for one in self.known.values()}
        kept = [one for one in self.known.values() if not names & set(one.message.unless)]
        if any(one.message.kind is Kind.STOPS for one in kept):
            kept = [one for one in kept if one.message.kind is not Kind.UNCLEAR]
        return sorted(kept, key=lambda one: kinds.index(one.message.kind))


def _last_part(path: str) -> str:
    """Return the end of a path: ranks keep the same file in different folders."""
    return path.replace("\\", "/").rpartition("/")[2]

"""What a reader says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from tuner.diagnose.table import Kind
from tuner.files import shipped_toml

NUM = r"\d{1,7}(?:\.\d{1,12})?"  # a number, also of a log that is made up
# Words of somebody who says that a server hangs, and what lines of them hold without blanks.
HANGS = re.compile(
    r"\b(?:hangs?|hung|hanging|stuck|struck in|freez\w+|frozen|blocks? forever|no further"
    r"|remains idle|not (?:return|respond)|just stops|time out indefinitely"
    r"|stop(?:s|ped)? (?:working|responding|generating))\b"
    r"|\bnever (?:starts|finish|completes|returns|comes up|ends?\b|stops?\b|terminates?)"
    r"|\b(?:don['’]t|do not|doesn['’]t|does not|won['’]t) (?:terminate|end\b|stop\b)"
    r"|卡住|卡死|卡在",
    re.IGNORECASE,
)
HANG_MARKS = (
    *(b"hang", b"hung", b"stuck", b"struckin", b"freez", b"frozen", b"blockforever"),
    *(b"blocksforever", b"nofurther", b"remainsidle", b"never", b"notre", "卡".encode()),
    *(b"stopswork", b"stopsre", b"stopsgen", b"stoppedwork", b"stoppedre", b"stopre", b"juststops"),
    *(b"stopwork", b"stopgen", b"indefinitely", b"terminate"),
    *(b"don'tend", b"don'tstop", b"doesn'tend", b"doesn'tstop", b"doesnotend", b"doesnotstop"),
)


@dataclass(frozen=True)
class Reading:
    """What many lines show together."""

    name: str
    kind: Kind
    title: str
    where: str  # FILE:LINE of the line that it ends with
    cause: Sequence[str]  # sentences
    fix: Sequence[str]  # the same; "$ " begins a command, "sglang: " or "vLLM: " one engine's step
    figures: dict[str, Any] = field(default_factory=dict)  # for --json
    engine: str = ""  # whose lines they are, if they show it

    def as_json(self) -> dict[str, Any]:
        return {
            "reading": self.name,
            "kind": self.kind.value,
            "title": self.title,
            "where": self.where,
            "cause": list(self.cause),
            "fix": [step for step in self.fix if not step.startswith("$ ")],
            "commands": [step[2:] for step in self.fix if step.startswith("$ ")],
            "figures": self.figures,
        }


@cache
def _texts() -> Mapping[str, Mapping[str, Any]]:
    return {row["name"]: row for row in shipped_toml(__package__, "load.toml")["reading"]}


def of_load(name: str, where: str, engine: str, values: Mapping[str, Any], *when: str) -> Reading:
    """A reading of load.toml. `when` are the holes without text that say which sentences hold."""
    row = _texts()[name]
    holes = {**values, **dict.fromkeys(when, "")}

    def filled(sentences: Sequence[str]) -> list[str]:
        found = []
        for sentence in sentences:
            try:
                found.append(sentence.format_map(holes))
            except KeyError:
                continue  # it does not hold here
        return found

    figures = {name: value for name, value in values.items() if not isinstance(value, str)}
    (title,) = filled([row["title"]])
    cause, fix = filled(row["cause"]), filled(row["fix"])
    return Reading(name, Kind(row["kind"]), title, where, cause, fix, figures, engine)


@dataclass(frozen=True)
class Whole:
    """What the rest of a diagnosis has found in the text."""

    explained: bool  # a message says why the server stops or waits
    failed: bool  # there is an exception that no message explains
    stops: bool = False  # a message says that the server stops
    trouble: bool = False  # words of the text name something else than speed
    names: frozenset[str] = frozenset()  # of the messages
    facts: frozenset[str] = frozenset()  # their names


class Reader(Protocol):
    """Adds lines up."""

    # Bytes without blanks. A part of a log is read if it holds one of `opens`, and then its lines
    # that hold one of `marks`.
    opens: Sequence[bytes]
    marks: Sequence[bytes]

    def read(self, line: str, where: str) -> None: ...

    def told(self, whole: Whole) -> Iterator[Reading]: ...

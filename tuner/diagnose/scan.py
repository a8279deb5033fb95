"""Find the known messages in logs of any size.

A log is read in blocks. Most blocks hold no message, so each block is first searched for the
forms' anchors, as bytes and without blanks. That finds a message too that a terminal has wrapped.
Only where an anchor occurs are lines decoded and matched.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from tuner.diagnose.findings import Findings, Frame, LogFinding
from tuner.diagnose.table import Form, Message, MessageTable, quads
from tuner.engines.logs.lines import BEGINS, BLANKS, blocks, lines_of, rank_of
from tuner.engines.logs.workload import read_load, unwrapped

_BEFORE, _AHEAD = 80, 8  # lines of context: a traceback, a wrapped message
_TITLE = 3  # lines above a message that answers may read
_FRAME = re.compile(  # people leave out its beginning
    r'(?:(?<=File ")|^\s*(?=[^"\s]+\.py"))([^"]{1,400})", line (\d{1,9})(?:, in ([\w<>.]{1,200}))?'
)
_FRAMES = (b'File"', b'.py",line')  # without blanks
_RAISE = re.compile(r"^\s*raise ([A-Za-z_][\w.]*(?:Error|Exception))\([rf]?([\"'])(.{1,300}?)\2")
_ERROR = re.compile(
    r"\b([A-Za-z_][\w.]{0,100}(?:Error|Exception|OutOfResources)|Exception(?=: \S))"
    r"(?:: ?(.{0,300})|\s*$)"
)
_NAMES_ERROR = re.compile(r"\b(?:raise|except|import|class)\b")  # source, and no exception
_RAISED = re.compile(r"Error|Exception|Interrupt|Exit")  # the line below a traceback
_PROCESS = re.compile(
    r"^.{0,90}?(?:\s*\([^()]* pid=\d+[^()]*\))+"
)  # of vLLM and Ray, and of journald
_LOGGED = re.compile(r"^.{0,200}?[\[ ][\w./-]+\.py:\d+\] ?")  # what a logger puts before a line
_ASSERT = re.compile(r"(?:(?<=\s)|^)assert[ (].*")
_MARKS = re.compile(r"(?:^|\s)[~^][~^ ]*$")  # Python 3.11 and later mark a part of the line above
_SHOWN = 1000  # characters of a line


def scan(streams: Iterable[tuple[str, BinaryIO]], table: MessageTable) -> Findings:
    """Search (name, stream) pairs, all of one server or cluster."""
    findings = Findings()
    for name, stream in streams:
        _Scan(name, table, findings).read(stream)
    return findings


@dataclass
class _Scan:
    """The state of the scan of one log."""

    name: str
    table: MessageTable
    findings: Findings
    _lines: list[bytes] = field(default_factory=list)  # context, and lines not yet searched
    _searched: int = 0  # how many of them are context
    _first: int = 1  # the number of the first of them in the log

    def read(self, stream: BinaryIO) -> None:
        for block in blocks(stream):
            self._lines += lines_of(block)
            self._search(len(self._lines) - _AHEAD)
        self._search(len(self._lines))
        self.findings.lines += self._first + len(self._lines) - 1

    def _search(self, end: int) -> None:
        """Search the lines up to `end`, then keep only what later lines need as context."""
        if end <= self._searched:
            return
        squeezed = [line.translate(None, BLANKS) for line in self._lines]
        joined = b"".join(squeezed)
        new = slice(self._searched, end)
        part = self._lines[new], squeezed[new], self.name, self._first + self._searched
        self.findings.facts.read(*part)
        self.findings.readers.read(*part)
        hits = self._forms_in(joined)
        hits.sort(key=lambda hit: "explained" in hit[1].unless)
        explained: set[int] = set()
        seen: set[tuple[str, int]] = set()  # a message may have two forms for the same line
        if hits:
            starts = _starts(squeezed)
            for form, message in hits:
                for place in _places(joined, form.anchor):
                    at = bisect_right(starts, place) - 1
                    if "explained" in message.unless and at in explained:
                        continue
                    if self._searched <= at < end and (message.name, at) not in seen:
                        if message.name == "kv_room" and not self._full(at):
                            continue
                        taken = self._match(at, form, message)
                        seen |= {(message.name, at)} if taken else set()
                        explained |= taken
        if b"Error" in joined or b"Exception" in joined:
            self._errors(end, explained)
        if any(mark in joined for mark in _FRAMES):
            self._traceback(end, explained)
        keep = max(0, end - _BEFORE)
        self._first += keep
        self._lines, self._searched = self._lines[keep:], end - keep

    def _forms_in(self, joined: bytes) -> list[tuple[Form, Message]]:
        """The forms whose anchor a text holds: one pass over it leaves few to look for."""
        held = quads(joined)
        return [one for one in self.table.forms if one[0].quads <= held and one[0].anchor in joined]

    def _match(self, at: int, form: Form, message: Message) -> set[int]:
        """Match a form whose anchor is in line `at`. The lines that it takes up."""
        for first, last in self._windows(at):
            texts = [self._text(i) for i in range(first, last + 1)]
            text = "".join(texts)
            match = form.pattern.search(text)
            if match:
                break
        else:
            return set()
        if any(words in text for words in message.not_in):
            return set()
        values = {name: value.strip() for name, value in match.groupdict().items() if value}
        while len(texts) > 1 and match.start() >= len(text) - len("".join(texts[1:])):
            del texts[0]
            first += 1
        line = " ".join(" ".join(texts).split())[:_SHOWN]
        frames = self._frames(first)
        where = f"{self.name}:{self._first + first}"
        around = self._around(first, last, message.below) if message.below else ""
        found = LogFinding(message, form, values, line, where, frames, around)
        self.findings.add(found, "".join(rank_of(text)))
        return set(range(first, last + 1))

    def _around(self, first: int, last: int, below: int) -> str:
        end = min(last + 1 + below, len(self._lines))
        return "\n".join(self._text(i) for i in range(max(0, first - _TITLE), end))

    def _windows(self, at: int) -> Iterator[tuple[int, int]]:
        """The line itself, then with the lines that may continue it or begin it."""
        before = at
        while before > max(0, at - 3) and not BEGINS.match(self._text(before)):
            before -= 1
        after = at
        most = min(len(self._lines) - 1, at + _AHEAD)
        while after < most and not BEGINS.match(self._text(after + 1)):
            after += 1
        yield at, at
        yield from ((at, last) for last in range(at + 1, after + 1))
        yield from ((before, last) for last in range(at, after + 1) if before < at)

    def _frames(self, before: int) -> list[Frame]:
        """The frames of the traceback that ends above a line."""
        found: list[Frame] = []
        for i in range(max(0, before - _BEFORE), before):
            line = self._lines[i]
            if b"Traceback (most recent call last)" in line or b"EngineDeadError: " in line:
                found = []  # those above are of another exception
            match = _FRAME.search(self._text(i))
            if match:
                found.append(Frame(match[1], int(match[2]), match[3] or ""))
        return found

    def _errors(self, end: int, explained: set[int]) -> None:
        for i in range(self._searched, end):
            line = self._lines[i]
            if (b"Error" in line or b"Exception" in line) and i not in explained:
                match = _ERROR.search(self._text(i))
                if match and (match[2] is not None or not _NAMES_ERROR.search(self._text(i))):
                    # An assertion may have no words: the line above it is its source.
                    said = self._source_above(i) if match[2] is None else match[2]
                    where = f"{self.name}:{self._first + i}"
                    text = _closed(f"{match[1]}: {(said or '').strip()}")
                    self.findings.add_error(text.removesuffix(": "), where, self._frames(i))

    def _traceback(self, end: int, explained: set[int]) -> None:
        """Keep the last frames, and what is raised there if the line of the error is cut off."""
        self.findings.last_frames = self._frames(end)
        last = max(i for i in range(end) if b'", line ' in self._lines[i] or not i)
        below = [self._text(i) for i in range(last + 1, end)]
        self.findings.cut = not any(map(_RAISED.search, below))
        match = _RAISE.search(below[0]) if below else None
        if match and last + 1 not in explained and not any(map(_ERROR.search, below[1:])):
            where = f"{self.name}:{self._first + last + 1}"
            self.findings.add_error(f"{match[1]}: {match[3]}", where, self._frames(last + 1))

    def _source_above(self, i: int) -> str:
        """The line of source above line `i`, without the marks that Python 3.11 puts below it."""
        lines = (self._text(at).rstrip() for at in range(i - 1, max(-1, i - 3), -1))
        above = (
            _LOGGED.sub("", _PROCESS.sub("", line)) for line in lines if not _MARKS.search(line)
        )
        source = next(filter(str.strip, above), "")
        assertion = _ASSERT.search(source)  # behind whatever a logger puts before it
        return assertion[0] if assertion else source

    def _full(self, at: int) -> bool:
        """Whether requests wait for room in the line of load that ends in line `at`."""
        texts = [self._text(i) for i in range(max(0, at - 3), at + 1)]
        whole = (unwrapped(texts[i], texts[i + 1 :]) for i in reversed(range(len(texts))))
        return self.findings.full(next(filter(read_load, whole), ""))

    def _text(self, i: int) -> str:
        return self._lines[i].decode("utf-8", errors="replace")


def _closed(text: str) -> str:
    """A text without a bracket at its end that was opened before it."""
    return text[:-1] if text.endswith(")") and text.count(")") > text.count("(") else text


def _starts(lines: Sequence[bytes]) -> list[int]:
    """Where each line begins in the joined text. An empty line begins where the next one does."""
    found, at = [], 0
    for line in lines:
        found.append(at)
        at += len(line)
    return found


def _places(text: bytes, anchor: bytes) -> Iterator[int]:
    at = text.find(anchor)
    while at >= 0:
        yield at
        at = text.find(anchor, at + len(anchor))

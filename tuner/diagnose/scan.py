"""Find the known messages in logs of any size.

A log is read in blocks. Most blocks hold no message, so each block is first searched for the forms'
anchors, as bytes and without blanks. This search finds a message too that a terminal has wrapped.
Lines are decoded and matched only around an anchor.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from tuner.diagnose.findings import Findings, Frame, LogFinding
from tuner.diagnose.table import Form, Message
from tuner.engines.logs.lines import BEGINS, BLANKS, blocks, lines_of, rank_of
from tuner.engines.logs.words import Fact

_BEFORE, _AHEAD = 80, 8  # lines of context: a traceback, a wrapped message
_TITLE = 3  # lines above a message that answers may read
_FRAME = re.compile(  # people leave out its beginning
    r'(?:(?<=File ")|^\s*(?=[^"\s]+\.py"))([^"]{1,400})", line (\d{1,9})(?:, in ([\w<>.]{1,200}))?'
)
_ERROR = re.compile(
    r"\b([A-Za-z_][\w.]{0,100}(?:Error|Exception|OutOfResources)|Exception(?=: \S))"
    r"(?:: ?(.{0,300})|\s*$)"
)
_NAMES_ERROR = re.compile(r"\b(?:raise|except|import|class)\b")  # source, and no exception
_SHOWN = 1000  # characters of a line


def scan(streams: Iterable[tuple[str, BinaryIO]], messages: Sequence[Message]) -> Findings:
    """Search (name, stream) pairs, all of the same server or cluster."""
    findings = Findings()
    for name, stream in streams:
        _Scan(name, messages, findings).read(stream)
    return findings


@dataclass
class _Scan:
    """Keep the state of the scan of a log."""

    name: str
    messages: Sequence[Message]
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
        """Search the lines up to `end`, then keep only the context that later lines need."""
        if end <= self._searched:
            return
        squeezed = [line.translate(None, BLANKS) for line in self._lines]
        joined = b"".join(squeezed)
        new = slice(self._searched, end)
        first = self._first + self._searched
        self.findings.facts.read(self._lines[new], squeezed[new], self.name, first)
        hits = self._forms_in(joined)
        explained: set[int] = set()
        seen: set[tuple[str, int]] = set()  # a message may have two forms for the same line
        if hits:
            starts = _starts(squeezed)
            for form, message in hits:
                for place in _places(joined, form.anchor):
                    at = bisect_right(starts, place) - 1
                    if self._searched <= at < end and (message.name, at) not in seen:
                        taken = self._match(at, form, message)
                        seen |= {(message.name, at)} if taken else set()
                        explained |= taken
        if self.findings.error is None and (b"Error" in joined or b"Exception" in joined):
            self.findings.error = self._first_error(end, explained)
        keep = max(0, end - _BEFORE)
        self._first += keep
        self._lines, self._searched = self._lines[keep:], end - keep

    def _forms_in(self, joined: bytes) -> list[tuple[Form, Message]]:
        """Return the forms whose anchor a text holds."""
        return [
            (form, message)
            for message in self.messages
            for form in message.forms
            if form.anchor in joined
        ]

    def _match(self, at: int, form: Form, message: Message) -> set[int]:
        """Match a form whose anchor is in line `at`, and return the lines that it takes up."""
        for first, last in self._windows(at):
            texts = [self._text(i) for i in range(first, last + 1)]
            text = "".join(texts)
            match = form.pattern.search(text)
            if match:
                break
        else:
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
        """Yield the line itself, then with the lines that may continue it or begin it."""
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
        """Return the frames of the traceback that ends above a line."""
        found: list[Frame] = []
        for i in range(max(0, before - _BEFORE), before):
            if b"Traceback (most recent call last)" in self._lines[i]:
                found = []  # the frames above are of another exception
            match = _FRAME.search(self._text(i))
            if match:
                found.append(Frame(match[1], int(match[2]), match[3] or ""))
        return found

    def _first_error(self, end: int, explained: set[int]) -> Fact | None:
        """Return the first exception in the new lines that no message takes up."""
        for i in range(self._searched, end):
            line = self._lines[i]
            if i in explained or not (b"Error" in line or b"Exception" in line):
                continue
            match = _ERROR.search(self._text(i))
            if match and (match[2] is not None or not _NAMES_ERROR.search(self._text(i))):
                text = f"{match[1]}: {(match[2] or '').strip()}".removesuffix(": ")
                return Fact(text, f"{self.name}:{self._first + i}")
        return None

    def _text(self, i: int) -> str:
        return self._lines[i].decode("utf-8", errors="replace")


def _starts(lines: Sequence[bytes]) -> list[int]:
    """List the start of each line in the joined text; an empty line starts where the next line
    starts.
    """
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

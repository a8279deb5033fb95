"""The table of known messages: the TOML files beside this module.

A message has one or several forms. A form is the format string in the engine's own source, with
holes for what the engine fills in:

    {name}        any text, as short as possible
    {name:int}    digits, perhaps with commas
    {name:some}   the same, and not 0
    {name:num}    a number, perhaps with a fraction
    {name:word}   text without blanks, quotes, brackets and commas
    {name:lib}    the name or path of a library
    {name:path}   text that ends in .json
    {name:sizes}  numbers with names as config files have them, E=64,N=1536, perhaps behind a folder
    {name:card}   the rest of such a file's name, with a GPU, up to .json
    {a|b}         one of these words; {name:a|b} keeps it

`words` are forms that are in no source, but in people's words.

A hole without a name is not kept. A blank stands for any white space or none, because terminals and
mail programs break lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property
from importlib import resources
from typing import Any

from tuner.engines.logs.lines import BLANKS
from tuner.files import shipped_toml

_HOLE = re.compile(r"\{(?:(?P<name>\w*):)?(?P<kind>[^{}]*)\}")
_ANY = ".{1,400}"
_KINDS = {
    "int": r"\d[\d,]*",
    "some": r"[1-9][\d,]*",
    "num": r"\d+(?:\.\d+)?",
    "word": r"[^\s'\",;()\[\]{}]+",
    "lib": r"[\w.+/-]+",
    "path": r"\S.{0,400}?\.json",
    "sizes": r"(?:[^\s'\"`,|]{0,400}/)?(?:\w{1,20}=\d{1,7},){0,4}\w{1,20}=\d{1,7}",
    "card": r"[^\s,;'\"`<>|/\\]{1,80}?(?:,\w{1,20}=(?:\[\d+,\s*\d+\]|\w{1,40}?)){0,4}"
    r"(?:_down)?\.json",
}


class Kind(str, Enum):
    """What a message means for the server, the worst first."""

    STOPS = "stops"  # the server ends, or cannot serve
    SLOW = "slow"  # the server serves more slowly than it could
    WAITS = "waits"  # the server takes long, and goes on
    NOTE = "note"
    FOLLOWS = "follows"  # the cause is in an earlier message


@dataclass(frozen=True)
class MessageSource:
    """Where a form stands in a program's source."""

    program: str  # sglang, vLLM, NCCL, torch, Triton, Ray ...
    since: str  # the first release of those read that has it; "" where releases were not compared
    until: str  # the last one; "" where the newest one read still has it
    source: str  # release, file and line of the format string, or the thread that reports it

    def releases(self) -> str:
        if not self.since:
            return self.program
        if self.since == self.until:
            return f"{self.program} {self.since}"
        return f"{self.program} {self.since} {f'to {self.until}' if self.until else 'and later'}"


@dataclass(frozen=True)
class Form:
    """One format string."""

    text: str
    origins: Sequence[MessageSource]

    @cached_property
    def anchor(self) -> bytes:
        """The longest text between holes, without blanks."""
        parts = (part.encode().translate(None, BLANKS) for part in _literals(self.text))
        return max(parts, key=len, default=b"")

    @cached_property
    def quads(self) -> frozenset[int]:
        """Each four bytes in a row of the anchor."""
        return quads(self.anchor)

    @property
    def pattern(self) -> re.Pattern[str]:
        return _pattern(self.text)


@dataclass(frozen=True)
class Message:
    """A known message, and what is to be said of it."""

    name: str
    title: str
    kind: Kind
    forms: Sequence[Form]
    cause: Sequence[str]  # sentences; one that names a hole without a value is left out
    fix: Sequence[str]  # the same; "$ " begins a command, "sglang: " or "vLLM: " one engine's step
    answer: str  # the name of a function of `answers` that adds what must be computed
    per: Sequence[str]  # holes whose values make findings of their own
    # Messages beside which this one says nothing new; "stops" is any of that kind without this word
    # of its own, "errors" an exception that no message explains, "explained" any message that is
    # found in the same line. Names of facts, and "kv_room_left" (see Findings), count too.
    unless: Sequence[str]
    threads: Sequence[str]  # public reports, "owner/name#123"
    # Instead of `cause` and `fix`, if the GPU shares the host's memory.
    unified_cause: Sequence[str] = ()
    unified_fix: Sequence[str] = ()
    alone: bool = False  # beside any other message this one says nothing new
    below: int = 0  # how many lines below it the answer reads too
    not_in: Sequence[str] = ()  # words of lines that are another message's


@dataclass(frozen=True)
class MessageTable:
    """All messages."""

    messages: Sequence[Message]

    @cached_property
    def forms(self) -> Sequence[tuple[Form, Message]]:
        """The forms of all messages."""
        return [(form, message) for message in self.messages for form in message.forms]


def quads(text: bytes) -> frozenset[int]:
    """Each four bytes in a row of a text, as a number."""
    view = memoryview(text)
    ends = ((start, start + (len(text) - start) // 4 * 4) for start in range(min(4, len(text))))
    return frozenset().union(*(view[start:end].cast("I") for start, end in ends))


@cache
def known_messages() -> MessageTable:
    """The table that is shipped."""
    messages: list[Message] = []
    for file in sorted(f.name for f in resources.files(__package__).iterdir()):
        if file.endswith(".toml"):
            values = shipped_toml(__package__, file)
            shared = values.get("shared", {})
            messages += [_message(row, shared) for row in values.get("message", ())]
    return MessageTable(tuple(messages))


def _message(row: Mapping[str, Any], shared: Mapping[str, Sequence[str]]) -> Message:
    def lines(field: str) -> tuple[str, ...]:
        parts = (shared[field] if one == "[shared]" else [one] for one in row.get(field, ()))
        return tuple(line for part in parts for line in part)

    people = [["people", "", "", thread] for thread in row.get("threads", ())]
    words = [{"text": text, "in": people[:1]} for text in row.get("words", ())]
    return Message(
        name=row["name"],
        title=row["title"],
        kind=Kind(row.get("kind", "stops")),
        forms=tuple(_form(form) for form in (*row.get("forms", ()), *words, *_texts(row))),
        cause=tuple(row["cause"]),
        fix=tuple(row["fix"]),
        answer=row.get("answer", ""),
        per=tuple(row.get("per", ())),
        unless=tuple(row.get("unless", ())),
        threads=tuple(row.get("threads", ())),
        unified_cause=lines("unified_cause"),
        unified_fix=lines("unified_fix"),
        alone=row.get("alone", False),
        below=row.get("below", 0),
        not_in=tuple(row.get("not_in", ())),
    )


def _texts(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The forms of a row's `texts`, which stand below "PROGRAM, SOURCE"."""
    for origin, texts in row.get("texts", {}).items():
        program, _, source = origin.partition(", ")
        yield from ({"text": text, "in": [[program, "", "", source]]} for text in texts)


def _form(row: Mapping[str, Any]) -> Form:
    form = Form(row["text"], tuple(MessageSource(*origin) for origin in row.get("in", ())))
    if not form.anchor:  # it would be found everywhere
        raise ValueError(f"the form {form.text!r} has no text of its own")
    return form


def _literals(text: str) -> list[str]:
    return [part for part in split_form(text) if isinstance(part, str)]


def split_form(text: str) -> list[str | re.Match[str]]:
    """Literal text and holes, in order."""
    found: list[str | re.Match[str]] = []
    end = 0
    for hole in _HOLE.finditer(text):
        found += [text[end : hole.start()], hole]
        end = hole.end()
    return [*found, text[end:]]


@cache
def _pattern(text: str) -> re.Pattern[str]:
    parts = split_form(text)
    written = [
        _hole(part, last=part is parts[-2] and not parts[-1])
        if isinstance(part, re.Match)
        else _literal(part)
        for part in parts
    ]
    return re.compile("".join(written))


def _hole(hole: re.Match[str], *, last: bool) -> str:
    name, kind = hole["name"], hole["kind"]
    if name is None and kind.isidentifier() and "|" not in kind:  # {name}, of any kind
        name, kind = kind, ""
    if "|" in kind:
        words = "|".join(_literal(word) for word in kind.split("|"))
    else:
        words = _KINDS[kind] if kind else _ANY + ("" if last else "?")
    return f"(?P<{name}>{words})" if name else f"(?:{words})"


def _literal(text: str) -> str:
    return "".join(r"\s*" if c.isspace() else re.escape(c) for c in text)

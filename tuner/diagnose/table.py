"""Read the table of known messages: messages.toml.

A message has one or several forms. A form is the format string in the engine's own source, with
holes for the parts that the engine fills in:

    {name}        any text, as short as possible
    {name:int}    digits, perhaps with commas
    {name:num}    a number, perhaps with a fraction
    {name:word}   text without blanks, quotes, brackets and commas
    {name:path}   text that ends in .json
    {name:sizes}  numbers with names as config files have them, E=64,N=1536, perhaps behind a folder
    {name:card}   the rest of such a file's name, with a GPU, up to .json
    {a|b}         one of these words; {name:a|b} keeps it

A hole without a name is not kept. A blank stands for any white space or none, because terminals and
mail programs break lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property
from typing import Any

from tuner.engines.logs.lines import BLANKS
from tuner.files import shipped_toml

_HOLE = re.compile(r"\{(?:(?P<name>\w*):)?(?P<kind>[^{}]*)\}")
_ANY = ".{1,400}"
_KINDS = {
    "int": r"\d[\d,]*",
    "num": r"\d+(?:\.\d+)?",
    "word": r"[^\s'\",;()\[\]{}]+",
    "path": r"\S.{0,400}?\.json",
    "sizes": r"(?:[^\s'\"`,|]{0,400}/)?(?:\w{1,20}=\d{1,7},){0,4}\w{1,20}=\d{1,7}",
    "card": r"[^\s,;'\"`<>|/\\]{1,80}?(?:,\w{1,20}=(?:\[\d+,\s*\d+\]|\w{1,40}?)){0,4}"
    r"(?:_down)?\.json",
}


class Kind(str, Enum):
    """The effects of a message on the server, the worst first."""

    STOPS = "stops"  # the server ends, or cannot serve
    UNCLEAR = "unclear"  # the same, and the message does not say why
    SLOW = "slow"  # the server serves more slowly than it could
    NOTE = "note"
    FOLLOWS = "follows"  # the cause is in an earlier message


@dataclass(frozen=True)
class MessageSource:
    """Say where a form stands in a program's source."""

    program: str  # sglang, vLLM, NCCL, torch, Triton, Ray ...
    since: str  # the first known release that has it; "": releases were not compared
    until: str  # the last release; "": the newest known release still has it
    source: str  # release, file and line of the format string, or the thread that reports it

    def releases(self) -> str:
        if not self.since:
            return self.program
        if self.since == self.until:
            return f"{self.program} {self.since}"
        return f"{self.program} {self.since} {f'to {self.until}' if self.until else 'and later'}"


@dataclass(frozen=True)
class Form:
    """Hold a format string."""

    text: str
    origins: Sequence[MessageSource]

    @cached_property
    def anchor(self) -> bytes:
        """Return the longest text between holes, without blanks."""
        parts = (part.encode().translate(None, BLANKS) for part in _literals(self.text))
        return max(parts, key=len, default=b"")

    @property
    def pattern(self) -> re.Pattern[str]:
        return _pattern(self.text)


@dataclass(frozen=True)
class Message:
    """Hold a known message and its explanation."""

    name: str
    title: str
    kind: Kind
    forms: Sequence[Form]
    cause: Sequence[str]  # sentences; a sentence that names a hole without a value is left out
    fix: Sequence[str]  # the same; "$ " begins a command, "sglang: " or "vLLM: " an engine's step
    answer: str = ""  # the name of a function of `answers` that computes an answer
    below: int = 0  # how many lines below the message that function reads
    per: Sequence[str] = ()  # holes whose values make findings of their own
    unless: Sequence[str] = ()  # names of messages beside which this message says nothing new


@cache
def known_messages() -> tuple[Message, ...]:
    """Read the table that is shipped."""
    return tuple(map(_message, shipped_toml(__package__, "messages.toml")["message"]))


def _message(row: Mapping[str, Any]) -> Message:
    return Message(
        name=row["name"],
        title=row["title"],
        kind=Kind(row["kind"]),
        forms=tuple(_form(form) for form in (*row.get("forms", ()), *_texts(row))),
        cause=tuple(row["cause"]),
        fix=tuple(row["fix"]),
        answer=row.get("answer", ""),
        below=row.get("below", 0),
        per=tuple(row.get("per", ())),
        unless=tuple(row.get("unless", ())),
    )


def _texts(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the forms of a row's `texts`, which stand below "PROGRAM, SOURCE"."""
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
    """Split into literal text and holes, in order."""
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

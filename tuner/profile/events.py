"""The events of a Chrome trace, one by one: a trace has gigabytes, and is never held whole."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tuner.errors import MalformedTrace
from tuner.render import printable

_CHUNK = 1 << 20  # characters
_LARGEST = 32 << 20  # characters of one value: events have hundreds, the header some thousands
_blank = re.compile(r"[ \t\r\n]*").match
_EVENTS = "traceEvents"
# Kernels' names may hold what JSON forbids in strings.
_DECODER = json.JSONDecoder(strict=False)


def trace_items(path: Path) -> Iterator[tuple[str, Any]]:
    """The fields of a trace as (name, value); events come one by one as ("traceEvents", event).

    Reads plain and gzipped JSON: an object with `traceEvents`, or a list of events. Raises
    MalformedTrace for anything else.
    """
    try:
        with path.open("rb") as raw:
            gzipped = raw.peek(2)[:2] == b"\x1f\x8b"
            data: IO[bytes] = gzip.GzipFile(fileobj=raw) if gzipped else raw  # type: ignore[assignment]
            text = io.TextIOWrapper(data, encoding="utf-8", errors="replace")
            yield from _Reader(text).items()
    except MalformedTrace as error:
        raise MalformedTrace(f"{_named(path)}: {error}") from None
    except EOFError:
        raise MalformedTrace(f"{_named(path)}: {_CUT}") from None
    except (OSError, ValueError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise MalformedTrace(f"{_named(path)} cannot be read: {reason}") from None


_CUT = "the file ends in the middle: wait until the profiler has written it, and read it again"
_NO_TRACE = (
    "this is no trace: give a file that torch's profiler wrote, *.json or *.json.gz, as "
    "/start_profile of sglang or vLLM does"
)


class _Reader:
    """A window that slides over a JSON text."""

    def __init__(self, stream: io.TextIOBase) -> None:
        self.stream = stream
        self.text, self.at, self.ended = "", 0, False

    def items(self) -> Iterator[tuple[str, Any]]:
        opening = self.next()
        if opening == "[":
            yield from self.events()
        elif opening == "{":
            yield from self.fields()
        else:
            raise MalformedTrace(_NO_TRACE)
        if self.next():
            raise MalformedTrace("there is more text after the trace's end")

    def fields(self) -> Iterator[tuple[str, Any]]:
        for _ in self.separated("}"):
            name = self.value()
            if self.next() != ":" or not isinstance(name, str):
                raise MalformedTrace(_NO_TRACE)
            if name != _EVENTS:
                yield name, self.value()
            elif self.next() != "[":
                raise MalformedTrace(f"{_EVENTS} is no list")
            else:
                yield from self.events()

    def events(self) -> Iterator[tuple[str, Any]]:
        for _ in self.separated("]"):
            yield _EVENTS, self.value()

    def separated(self, closing: str) -> Iterator[None]:
        """Stops before each of the values that commas separate, and after `closing`."""
        if self.next() == closing:
            return
        self.at -= 1
        mark = ","
        while mark == ",":
            yield
            mark = self.next()
        if mark != closing:
            raise MalformedTrace(_NO_TRACE if mark else _CUT)

    def next(self) -> str:
        """The next character that is not blank; "" at the end."""
        while True:
            self.at = _blank(self.text, self.at).end()  # type: ignore[union-attr]  # matches ""
            if self.at < len(self.text):
                self.at += 1
                return self.text[self.at - 1]
            if not self.more():
                return ""

    def value(self) -> Any:  # noqa: ANN401  # JSON
        """The value at the window's start, which is read on until the value is whole."""
        while True:
            self.at = _blank(self.text, self.at).end()  # type: ignore[union-attr]
            try:
                value, end = _DECODER.raw_decode(self.text, self.at)
            except (ValueError, RecursionError):
                end = -1
            # A number at the window's end may go on behind it.
            if 0 <= end < len(self.text) or (end >= 0 and self.ended):
                self.at = end
                return value
            if len(self.text) - self.at > _LARGEST:
                raise MalformedTrace(_NO_TRACE)
            if not self.more():
                raise MalformedTrace(_CUT)

    def more(self) -> bool:
        """Slide the window on; False at the text's end."""
        read = self.stream.read(max(_CHUNK, len(self.text) - self.at))
        self.text, self.at = self.text[self.at :] + read, 0
        self.ended = not read
        return bool(read)


def _named(path: Path) -> str:
    return printable(str(path))[:300]

"""Read what people write: files up to a size, TOML field by field, and variables.

So every error names the file, the field or the variable.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import accumulate
from pathlib import Path
from typing import Any

from tuner.errors import BadInput, did_you_mean


def read_limited(path: Path, limit: int, kind: str, error: type[BadInput]) -> bytes:
    """Read a file's bytes. Raises `error` if it cannot be read or is larger than `limit`.

    `limit` is in bytes, a multiple of 1 MiB; `kind` names the expected file, e.g. "config.json".
    """
    text = str(path)
    where = text if text.isprintable() and len(text) < 300 else repr(text[:200])
    try:
        with path.open("rb") as stream:
            data = stream.read(limit + 1)
    except (OSError, ValueError) as cause:  # ValueError: the name holds a NUL
        reason = getattr(cause, "strerror", None) or cause
        raise error(f"{where}: cannot be read: {reason}") from None
    if len(data) > limit:
        raise error(f"{where}: larger than {limit >> 20} MiB, no {kind}")
    return data


def read_value(name: str, environ: Mapping[str, str]) -> str | None:
    """Return a variable, or the content of the file that NAME_FILE names; None if neither is set.

    Raises BadInput if both are set, and for a file that is empty or cannot be read.
    """
    if file := environ.get(f"{name}_FILE"):
        if environ.get(name):
            raise BadInput(f"{name} and {name}_FILE are both set: unset one of them")
        try:
            value = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{name}_FILE cannot be read: {error}") from None
        if not value:
            raise BadInput(f"{name}_FILE names an empty file: {file}")
        return value
    return environ.get(name) or None


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# tomllib takes seconds for a key of ten thousand parts.
KEY_PARTS = 16  # of a dotted key or a table's name
TOML_DEPTH = 32  # lists and tables in one another
_LONGEST = 300  # characters of an error message: a field's name or value may be any text
# Comments and strings. An unclosed string goes on to the end: else each quote in it would be looked
# at anew.
_TEXTS = re.compile(
    r"""#[^\n]*"""
    r"""|\"{3}(?:[^\"\\]|\\.|\"{1,2}(?!\"))*(?:\"{3,5})?"""
    r"""|'{3}(?:[^']|'{1,2}(?!'))*(?:'{3,5})?"""
    r"""|\"(?:[^\"\\\n]|\\.)*\"?|'[^'\n]*'?""",
    re.DOTALL,
)
_BRACKET = re.compile(r"[\[\]{}]")
_LONG_KEY = re.compile(rf"(?:\.[ \t]*[\w-]+[ \t]*){{{KEY_PARTS}}}")


def parse_toml(data: str | bytes, source: str, error: type[BadInput]) -> dict[str, Any]:
    """Return the values of a TOML text. Raises `error`, which names `source`."""
    try:
        text = data if isinstance(data, str) else data.decode()
        _check_structure(text)
        return _loads(text)
    except (ValueError, RecursionError) as cause:
        raise error(f"{source} is not TOML: {_line(str(cause))}") from None


def _check_structure(text: str) -> None:
    """Refuse, in linear time, texts for which tomllib needs too long or too deep a stack."""
    bare = _TEXTS.sub("s", text)
    if _LONG_KEY.search(bare):
        raise ValueError(f"a key has at most {KEY_PARTS} parts")
    depths = accumulate(1 if mark in "[{" else -1 for mark in _BRACKET.findall(bare))
    if max(depths, default=0) > TOML_DEPTH:
        raise ValueError(f"lists and tables are nested at most {TOML_DEPTH} deep")


@cache
def shipped_toml(package: str, name: str) -> dict[str, Any]:
    """Return the values of a TOML file inside a package. All callers share them; nobody changes
    them.
    """
    return _loads(resources.files(package).joinpath(name).read_text(encoding="utf-8"))


def _loads(text: str) -> dict[str, Any]:
    # Imported late: the attention plugin reads files inside a server, which may have no parser.
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415
    else:
        import tomli as tomllib  # noqa: PLC0415
    values: dict[str, Any] = tomllib.loads(text)
    return values


class Table:
    """A table whose fields are taken one by one; `done` refuses the rest.

    Every method raises the error class given to the constructor. Errors name the field.
    """

    def __init__(self, value: object, where: str, error: type[BadInput]) -> None:
        self._error = error
        if not isinstance(value, dict):
            raise self._refused(f"{where or 'the file'} must be a table")
        self.where = where
        self.values = dict(value)
        self.asked: list[str] = []

    def field(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name

    def take(self, name: str, default: object = None) -> object:
        """Return the value of a field, which is required unless it has a default."""
        self.asked.append(name)
        if name in self.values:
            return self.values.pop(name)
        if default is None:
            near = did_you_mean(name, self.values)
            hint = (
                f" ({near.removeprefix('; did you mean ').rstrip('?')} stands there)"
                if near
                else ""
            )
            raise self._refused(f"{self.field(name)} is missing{hint}")
        return default

    def text(self, name: str, pattern: re.Pattern[str] | None, default: str | None = None) -> str:
        """Return a printable string that matches `pattern`; only the default may be empty."""
        value = self.take(name, default)
        if not isinstance(value, str):
            raise self._refused(f"{self.field(name)} must be a string, not {value!r}")
        if value == default:
            return value
        if not value or not value.isprintable() or (pattern and not pattern.fullmatch(value)):
            raise self._refused(f"{self.field(name)} cannot be {value!r}")
        return value

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """Return a whole number from `low` to `high`."""
        value = self.take(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._refused(f"{self.field(name)} must be a whole number, not {value!r}")
        if not low <= value <= high:
            nearest = min(max(value, low), high)
            raise self._refused(
                f"{self.field(name)} must be {low} to {high}, not {value}; nearest is {nearest}"
            )
        return value

    def table(self, name: str, default: Mapping[str, object] | None = None) -> Table:
        return Table(self.take(name, default), self.field(name), self._error)

    def variables(self, name: str) -> dict[str, str]:
        """Return a table of environment variables; empty if it is absent."""
        table = self.table(name, {})
        for variable, value in table.values.items():
            if not _VARIABLE.fullmatch(variable):
                raise self._refused(f"{table.where}: {variable!r} cannot name a variable")
            if not isinstance(value, str) or "\n" in value or "\0" in value:
                raise self._refused(
                    f"{table.field(variable)} must be a string of one line, not {value!r}; "
                    f'write "{value}"'
                )
        return {str(k): str(v) for k, v in table.values.items()}

    def strings(self, name: str, default: Sequence[str]) -> list[str]:
        value = self.take(name, list(default))
        if isinstance(value, list) and all(isinstance(v, str) and v.isprintable() for v in value):
            return [str(v) for v in value]
        raise self._refused(f"{self.field(name)} must be a list of strings, not {value!r}")

    def done(self) -> None:
        """Refuse fields that were not taken: they are unknown."""
        for name in self.values:
            raise self._refused(f"unknown field {self.field(name)}{did_you_mean(name, self.asked)}")

    def _refused(self, complaint: str) -> BadInput:
        return self._error(_line(complaint))


def _line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST]

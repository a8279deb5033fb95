"""TOML files. Their tables are taken apart field by field, so every complaint names the field."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from tuner.errors import BadInput, did_you_mean

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST = 300  # characters of a complaint: a field's name or value may be any text


def parse_toml(data: str | bytes, source: str, error: type[BadInput]) -> dict[str, Any]:
    """The values of a file's text. Raises `error`, which names `source`, for what is not TOML."""
    try:
        values: dict[str, Any] = tomllib.loads(data if isinstance(data, str) else data.decode())
    except (ValueError, RecursionError) as cause:
        raise error(f"{source} is not TOML: {_line(str(cause))}") from None
    return values


def shipped_toml(package: str, name: str) -> dict[str, Any]:
    """The values of a file that a package brings along."""
    text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    values: dict[str, Any] = tomllib.loads(text)
    return values


class Table:
    """A table that still holds the fields nobody took: at the end, those are unknown ones.

    Every method raises the class of error that it is made with.
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
        """The field's value; a field without a default must be there."""
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
        value = self.take(name, default)
        if not isinstance(value, str):
            raise self._refused(f"{self.field(name)} must be a string, not {value!r}")
        if value == default:
            return value
        if not value or not value.isprintable() or (pattern and not pattern.fullmatch(value)):
            raise self._refused(f"{self.field(name)} cannot be {value!r}")
        return value

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
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
        """Refuse what nobody took."""
        for name in self.values:
            raise self._refused(f"unknown field {self.field(name)}{did_you_mean(name, self.asked)}")

    def _refused(self, complaint: str) -> BadInput:
        return self._error(_line(complaint))


def _line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST]

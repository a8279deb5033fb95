"""Plain values as YAML, in block style, with every string in double quotes.

A quoted string cannot be read as a number, a truth value or YAML syntax.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence


def yaml_text(*documents: object) -> str:
    """Mappings, sequences, strings, whole numbers and truth values as YAML documents."""
    return "---\n".join("\n".join(_lines(document)) + "\n" for document in documents)


def without_variables(text: str) -> str:
    """Escape text so that compose or Kubernetes finds no variable in it."""
    return text.replace("$", "$$")


def _lines(value: object) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from _entry(f"{_scalar(name)}:", item)
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        for item in value:
            yield from _item(item)
    else:
        yield _scalar(value)


def _entry(name: str, value: object) -> Iterator[str]:
    if isinstance(value, (Mapping, list, tuple)) and value:
        yield name
        yield from (f"  {line}" for line in _lines(value))
    else:
        yield f"{name} {_scalar(value)}"


def _item(value: object) -> Iterator[str]:
    first, *rest = _lines(value)
    yield f"- {first}"
    yield from (f"  {line}" for line in rest)


def _scalar(value: object) -> str:
    if isinstance(value, str):
        # JSON's escapes are also YAML's, except for characters beyond 16 bits.
        return "".join(_character(c) for c in json.dumps(value, ensure_ascii=False))
    return json.dumps(value)


def _character(c: str) -> str:
    if c.isprintable():
        return c
    return f"\\u{ord(c):04x}" if ord(c) < 1 << 16 else f"\\U{ord(c):08x}"

"""Read the fields of a problem's text, `name:field=value,flag,...`. Families' parsers use this."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.errors import BadProblem, did_you_mean


def read_fields(text: str, known: Sequence[str], required: int) -> dict[str, str]:
    """The fields after the colon, by name; a flag has the value "".

    The first `required` fields of `known` must be there. Raises BadProblem for a field that is
    unknown or missing.
    """
    fields: dict[str, str] = {}
    for part in filter(None, text.partition(":")[2].split(",")):
        name, _, value = part.partition("=")
        if name not in known:
            raise BadProblem(f"unknown field {name!r} in {text!r}{did_you_mean(name, known)}")
        fields[name] = value
    missing = [name for name in known[:required] if name not in fields]
    if missing:
        raise BadProblem(f"{text!r} lacks {', '.join(missing)}")
    return fields


def parse_block_shape(text: str) -> tuple[int, int]:
    """Read a quantisation block, "128x128": rows by columns. Raises BadProblem."""
    n, _, k = text.partition("x")
    return parse_whole("block_shape", n), parse_whole("block_shape", k)


def parse_whole(name: str, text: str) -> int:
    """Read a whole number, 0 or more. Raises BadProblem, which names the field."""
    # int() also reads "1_0" and non-ASCII digits, which the engine's file names never hold.
    if not _digits(text):
        raise BadProblem(f"{name} must be a whole number, not {text!r}")
    return int(text)


def parse_flag(name: str, text: str) -> bool:
    """Read true or false; "" is true. Raises BadProblem, which names the field."""
    if text.lower() not in ("", "true", "false"):
        raise BadProblem(f"{name} must be true or false, not {text!r}")
    return text.lower() != "false"


def parse_number(name: str, text: str) -> float:
    """Read a number, 0 or more, e.g. "30" or "0.5". Raises BadProblem, which names the field."""
    whole, _, fraction = text.partition(".")
    if not (_digits(whole) and (not fraction or _digits(fraction))):
        raise BadProblem(f"{name} must be a number, not {text!r}")
    return float(text)


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9

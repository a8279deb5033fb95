"""Read the JSON files that the plugin uses, with errors that name the fault.

This module needs only the standard library, because it runs inside a server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.errors import MalformedConfigFile, did_you_mean
from tuner.files import read_limited
from tuner.problems.results import WINNING

FORMAT = 1
SPLITS_FORMAT = 2  # of a decode file with a table of KV splits, which older versions must not use
STATUSES = WINNING[::-1]  # the best first

_MAX_BYTES = 1 << 20
_MAX_VALUE = 1 << 24  # tokens; all other values are far smaller


def read_data(path: Path, what: str) -> bytes:
    """Return a file's bytes. Raises MalformedConfigFile, which names the file and its kind,
    `what`.
    """
    return read_limited(path, _MAX_BYTES, what, MalformedConfigFile)


def parse_fields(data: bytes, formats: tuple[int, ...] = (FORMAT,)) -> dict[str, Any]:
    """Return the fields of a file in a known format. Raises MalformedConfigFile without the
    path.
    """
    try:
        tree = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise MalformedConfigFile(f"not JSON: {error}") from None
    if not isinstance(tree, dict):
        raise MalformedConfigFile("must be an object")
    found = tree.get("format")
    if isinstance(found, bool) or found not in formats:
        known = " and ".join(map(str, formats))
        raise MalformedConfigFile(
            f"its format is {found!r}; this version of the tuner reads {known}"
        )
    return tree


def text_field(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise MalformedConfigFile(f"{name!r} must be text")
    return value


def choice_field(
    row: Mapping[str, Any], name: str, choices: Mapping[str, object], where: str
) -> str:
    value = row.get(name)
    if not isinstance(value, str) or value not in choices:
        near = did_you_mean(str(value), choices)
        raise MalformedConfigFile(
            f"{where}: {name} must be {' or '.join(choices)}, not {value!r}{near}"
        )
    return value


def whole_field(row: Mapping[str, Any], name: str, where: str, least: int = 1) -> int:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MAX_VALUE:
        raise MalformedConfigFile(
            f"{where}: {name} must be a whole number from {least} to {_MAX_VALUE}, not {value!r}"
        )
    return value

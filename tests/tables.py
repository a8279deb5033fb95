"""Tables of tests that are data."""

from typing import Any

from cases import ROOT

from tuner.errors import BadInput
from tuner.files import parse_toml


def rows(name: str, kind: str) -> list[dict[str, Any]]:
    """Return the rows `[[kind]]` of a TOML file below tests/data."""
    found: list[dict[str, Any]] = parse_toml(
        (ROOT / "tests" / "data" / name).read_bytes(), name, BadInput
    )[kind]
    return found

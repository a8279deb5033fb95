"""Settings from environment variables, or from the files that container secrets are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tuner.errors import BadInput


def read_value(name: str, environ: Mapping[str, str]) -> str | None:
    """A variable, or the content of the file that NAME_FILE names; None where neither is set.

    Raises BadInput where both are set, and for a file that cannot be read.
    """
    if file := environ.get(f"{name}_FILE"):
        if environ.get(name):
            raise BadInput(f"{name} and {name}_FILE are both set: unset one of them")
        try:
            return Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{name}_FILE cannot be read: {error}") from None
    return environ.get(name) or None

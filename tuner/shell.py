"""Write lines that people paste into a shell: every word arrives as it is here."""

from __future__ import annotations

import shlex
from collections.abc import Iterable


def command_line(*words: str) -> str:
    """Return a command with its arguments."""
    return " ".join(map(shlex.quote, words))


def export_line(name: str, value: str) -> str:
    """Return the line that sets a variable for all programs that are started after it."""
    return f"export {name}={shlex.quote(value)}"


def unset_line(names: Iterable[str]) -> str:
    """Return the line that removes variables."""
    return f"unset {' '.join(names)}"

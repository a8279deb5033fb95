"""Write the patch of an engine's file that both `tuner check` and `tuner diagnose` make."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tuner.cli.app import say
from tuner.errors import BadInput, UnwritableOutput
from tuner.shell import command_line

if TYPE_CHECKING:
    from tuner.families.attention.engine import Remedy


def write_remedy(remedy: Remedy | None, path: Path) -> None:
    """Write a remedy's patch, and say how to apply it. Raises BadInput if it has none."""
    patch = remedy.patch() if remedy else ""
    if remedy is None or not patch:
        raise BadInput(
            "there is no patch to write: no launch of this engine's attention is known to be too "
            "large for this GPU; name both with --engine sglang==VERSION and --device"
        )
    try:
        path.write_text(patch, encoding="utf-8", newline="")
    except OSError as error:
        raise UnwritableOutput(f"{path} cannot be written: {error.strerror}") from None
    apply = command_line("patch", "-p1", "-d", str(remedy.root), "-i", str(path.resolve()))
    say(f"written: {path}; apply it with: {apply}")

"""Binaries that hold no code for a GPU: whose they are, and what runs without them."""

from __future__ import annotations

import re

from tuner.diagnose.added import Added
from tuner.diagnose.context import Context
from tuner.diagnose.crashes import launch_of
from tuner.diagnose.findings import LogFinding
from tuner.diagnose.tracebacks import package_of
from tuner.engines.engine import engine_names
from tuner.files import shipped_toml

_SOURCE = re.compile(r"/([A-Za-z_]\w*)-(\d+(?:\.\d+)*)[^/\s]*/(?:include|csrc|src)/")
_NEW, _OLD = 100, 75  # Blackwell and later, Turing and before


def no_image(finding: LogFinding, context: Context) -> Added:
    """Name the library that raised it, how the card differs, and what helps such a card."""
    library, named = _library(finding)
    card = _capability(context)
    old = 0 < card <= _OLD or bool(context.too_old())
    age = "newer" if card >= _NEW else "older" if old else "newer or older"
    is_card = f"this GPU (sm_{card})" if card else "this GPU"
    cause = f"{named} raised it: its build has no code for {is_card}, which is {age} than those it "
    causes = (f"{cause}was built for.",) if library else ()
    rows = shipped_toml(__package__, "kernels.toml")["image"]
    when = "new" if card >= _NEW else "other"
    row = next(row for row in rows if re.fullmatch(row["library"], library) and when in row)
    return Added(causes, tuple(row[when]), {"library": library or None, "capability": card or None})


def _library(finding: LogFinding) -> tuple[str, str]:
    """The package whose code raised it, and its name with the version that a path shows."""
    if source := _SOURCE.search(finding.text):
        return source[1], f"{source[1]} {source[2]}"
    frame = launch_of(finding.frames)
    package = package_of(frame) if frame else ""
    return ("", "") if package in engine_names() else (package, package)


def _capability(context: Context) -> int:
    """The card's compute capability as one number; 0 if the text does not tell one alone."""
    device, words = context.device(), "" if "sm" in context.facts.others else "sm"
    if device and isinstance(device.target.arch, int):
        return device.target.arch
    told = context.facts.get("capability") or context.facts.get(words)
    return int(told.replace(".", "") or 0)

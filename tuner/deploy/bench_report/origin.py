"""What a benchmark was run on: the model, the GPU and the date, as its files say.

bench_serving's JSON of vLLM says the model and the date; its printed arguments and a server's
first lines say the model; a server's lines say dates, and config files' names say the GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import MalformedBenchmark

_MODEL = re.compile(
    r"""["']?\b(?:model_id|model_path|model)["']?\s*[=:]\s*["']([^"'\s]{1,200})["']"""
)
_DEVICE = re.compile(r"\bdevice_name=([A-Za-z0-9_]{2,60})")
# "2025-03-01 12:00:00" of a server's line; "20250301-120000" of vLLM's JSON.
_DATE = re.compile(
    r"""[\["'](20\d\d)-?(0[1-9]|1[0-2])-?(0[1-9]|[12]\d|3[01])[ T-]\d\d:?\d\d:?\d\d"""
)
_LONGEST = 100_000  # characters of a line that are looked at


@dataclass(frozen=True)
class RunDetails:
    """What is known; empty fields are not known."""

    model: str = ""
    device: str = ""
    date: str = ""  # YYYY-MM-DD, of the first line that has one

    def or_else(self, other: RunDetails) -> RunDetails:
        """This, with what is missing taken from another."""
        return RunDetails(
            self.model or other.model, self.device or other.device, self.date or other.date
        )

    @property
    def title(self) -> str:
        """E.g. "DeepSeek-R1 on NVIDIA_H200, 2026-11-22"; empty where nothing is known."""
        on = f"{self.model} on {self.device}" if self.model and self.device else ""
        return ", ".join(part for part in (on or self.model or self.device, self.date) if part)


def read_origin(path: Path) -> RunDetails:
    """What a file says, or the files of a folder together. Raises MalformedBenchmark."""
    found = RunDetails()
    try:
        for file in sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]:
            with file.open(encoding="utf-8", errors="replace") as lines:
                found = found.or_else(parse_origin(lines))
    except OSError as error:
        raise MalformedBenchmark(f"{path} cannot be read: {error.strerror}") from None
    return found


def parse_origin(lines: Iterable[str]) -> RunDetails:
    """What the lines say. The first mention of each counts."""
    found = RunDetails()
    for line in lines:
        if found.model and found.device and found.date:
            break
        found = found.or_else(_of_line(line[:_LONGEST]))
    return found


def _of_line(line: str) -> RunDetails:
    model, device, date = (pattern.search(line) for pattern in (_MODEL, _DEVICE, _DATE))
    return RunDetails(
        model.group(1).rstrip("/").rpartition("/")[2] if model else "",
        device.group(1) if device else "",
        "-".join(date.groups()) if date else "",
    )

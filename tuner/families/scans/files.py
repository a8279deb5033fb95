"""Write and read the files that carry choices for a scan's kernels to servers: exports write them,
plugins read them.

Their path is `<root>/chunk_scan/triton_3_6_0/<problem>,device_name=NVIDIA_H200.json`. This module
needs only the standard library, because it runs inside servers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.errors import BadProblem, MalformedConfigFile, did_you_mean
from tuner.export.file_checks import SERVED_OCTAVES
from tuner.families.scans.scan import ScanKernel, ScanProblem, scan_named, scan_of, tokens_of
from tuner.files import read_limited
from tuner.problems.points import Config, Point, version_folder
from tuner.problems.results import Status

FORMAT = 1
FOLDER = "chunk_scan"  # of all families of scans
CONFIG_DIR_VARIABLE = "TUNER_SCAN_CONFIG_DIR"
STATUSES = (Status.OK, Status.INCUMBENT)  # measured, or the engine's own, which stays
_TEXTS = ("device", "engine", "engine_version", "triton", "kernel_hash")
_MOST_BYTES = 1 << 20
_MOST = 1 << 24  # tokens; all other values are far smaller


@dataclass(frozen=True)
class ScanEntry:
    """The choice for a kernel at a number of tokens."""

    point: Point
    config: Config
    status: Status  # one of STATUSES


@dataclass(frozen=True)
class ScanFile:
    """The choices for a problem on a kind of GPU, and the software that they are for."""

    problem: ScanProblem
    device: str  # e.g. NVIDIA_H200
    engine: str
    engine_version: str
    triton: str
    kernel_hash: str  # of all of the engine's kernels of the scan, as lifted
    entries: tuple[ScanEntry, ...]

    @property
    def title(self) -> str:
        return scan_of(self.problem).title(self.problem)

    @property
    def predicted(self) -> bool:
        """Say whether no entry was measured. Such files are not made."""
        return False

    def text(self) -> str:
        """Return the file's JSON; `read_scan_file` reads it back."""
        texts = {name: getattr(self, name) for name in _TEXTS}
        rows = [
            {
                "part": entry.point.part.value,
                "batch_size": entry.point.batch_size,
                "new_tokens": entry.point.new_tokens,
                "config": dict(entry.config),
                "status": entry.status.value,
            }
            for entry in self.entries
        ]
        fields = {"format": FORMAT, "problem": self.problem.spec(), **texts, "entries": rows}
        return json.dumps(fields, indent=2) + "\n"

    def path_under(self, root: Path) -> Path:
        """Return the path of the file under a root."""
        name = file_name(self.problem, self.device)
        return root / FOLDER / version_folder(self.triton) / name

    def pick(self, part: ScanKernel, tokens: int) -> ScanEntry | None:
        """Return the entry of the nearest number of tokens by their ratio; None if no entry is
        near.
        """

        def distance(entry: ScanEntry) -> tuple[float, Point]:
            return abs(math.log2(tokens_of(entry.point) / tokens)), entry.point

        here = [entry for entry in self.entries if entry.point.part is part]
        near = [entry for entry in here if distance(entry)[0] <= SERVED_OCTAVES]
        return min(near, key=distance, default=None)


def file_name(problem: ScanProblem, device_name: str) -> str:
    return f"{problem.spec().replace(':', ',', 1)},device_name={device_name}.json"


def scan_root(environ: Mapping[str, str]) -> tuple[str, Path] | None:
    """Return the variable that names a root of these files, and the root; None if it is not set."""
    named = environ.get(CONFIG_DIR_VARIABLE)
    return (CONFIG_DIR_VARIABLE, Path(named)) if named else None


def find_scan_files(root: Path, family: str = "") -> list[Path]:
    """Return the sorted paths of all files under a root, or of a family's, for any Triton version.

    No file is opened.
    """
    return sorted((root / FOLDER).glob(f"triton_*/{family and f'{family},'}*.json"))


def family_of_file(path: Path) -> str:
    """Return the family that a file's name begins with."""
    return path.name.partition(",")[0]


def read_scan_file(path: Path) -> ScanFile:
    """Read a file. Raises MalformedConfigFile, which names the file and the fault."""
    data = read_limited(path, _MOST_BYTES, "file of a chunked scan", MalformedConfigFile)
    try:
        return _file(json.loads(data.decode()))
    except (ValueError, RecursionError, MalformedConfigFile, BadProblem) as error:
        raise MalformedConfigFile(f"{path}: {error}") from None


def _file(fields: object) -> ScanFile:
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise MalformedConfigFile(f"it is no object of format {FORMAT}")
    texts = {name: _text(fields, name) for name in ("problem", *_TEXTS)}
    text = texts.pop("problem")
    problem: ScanProblem = scan_named(text.partition(":")[0]).parse(text)
    rows = fields.get("entries")
    if not isinstance(rows, list) or not rows:
        raise MalformedConfigFile("it holds no entries")
    entries = tuple(_entry(problem, number, row) for number, row in enumerate(rows))
    if len({entry.point for entry in entries}) < len(entries):
        raise MalformedConfigFile("two entries are for the same kernel and prompts")
    return ScanFile(problem, **texts, entries=entries)


def _entry(problem: ScanProblem, number: int, row: object) -> ScanEntry:
    if not isinstance(row, dict) or not isinstance(config := row.get("config"), dict):
        raise MalformedConfigFile(f"entry {number} must be an object with a config")
    parts = {part.value: part for part in problem.parts}
    statuses = {status.value: status for status in STATUSES}
    for name, known in (("part", parts), ("status", statuses)):
        if row.get(name) not in known:
            near = did_you_mean(str(row.get(name)), known)
            raise MalformedConfigFile(f"entry {number}: unknown {name} {row.get(name)!r}{near}")
    point = Point(_whole(row, "batch_size"), parts[row["part"]], _whole(row, "new_tokens"))
    values = {name: _whole(config, name) for name in config}
    return ScanEntry(point, Config(values), statuses[row["status"]])


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise MalformedConfigFile(f"{name!r} must be text")
    return value


def _whole(row: Mapping[str, Any], name: str) -> int:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
        raise MalformedConfigFile(f"{name} must be a whole number from 1, not {value!r}")
    return value

"""Compare two exports by the sidecars of their files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

from tuner.engines.config_files import PROVENANCE
from tuner.errors import BadInput
from tuner.problems.results import Status, counted
from tuner.render import folded, gain_text
from tuner.tuning.gains import OWN, mean_gain

Rows = Mapping[str, Mapping[str, Any]]  # a file's entries by size


@dataclass(frozen=True)
class FileDiff:
    """A file in two exports. Gains are geometric means over the entries with both times."""

    file: str  # below the root's folder of sidecars
    change: str  # "added", "removed", "changed" or "the same"
    entries: int  # in the new file; of a removed file, in the old file
    changed: tuple[str, ...]  # sizes with another configuration, or in only one of the files
    statuses: Mapping[str, int]
    before: float | None  # the old file's gain over the engine's choices
    after: float | None  # the new file's
    faster: float | None  # the changed entries' old times over their new times

    def __str__(self) -> str:
        said = f"{self.change}: {self.file}\n    {self.entries} entries: {counted(self.statuses)}"
        if self.change == "changed":
            said += f"; changed at {len(self.changed)}: {' '.join(self.changed)}"
        gains = [("before", self.before), ("now", self.after)]
        told = [f"{gain_text(gain)} {when}" for when, gain in gains if gain is not None]
        if told:
            said += f"\n    over the engine's choice: {', '.join(told)}"
        if self.faster is not None:
            said += f"\n    the changed entries' times: {gain_text(self.faster)} as fast as before"
        return said


@dataclass(frozen=True)
class ExportDiff:
    """All files of two exports."""

    files: tuple[FileDiff, ...]

    def as_json(self) -> dict[str, Any]:
        return {"files": [asdict(one) for one in self.files]}

    def as_text(self) -> str:
        """Return the files that differ, and the number of files that do not."""
        others = [one for one in self.files if one.change != "the same"]
        same = len(self.files) - len(others)
        lines = [f"{len(others)} of {len(self.files)} tuned files differ, {same} are the same"]
        return folded("\n".join([*lines, *map(str, others)]))


def diff_exports(old: Path, new: Path) -> ExportDiff:
    """Compare two folders that `tuner export` wrote. Raises BadInput for another folder."""
    before, after = _read(old), _read(new)
    return ExportDiff(
        tuple(_diff(name, before.get(name), after.get(name)) for name in sorted({*before, *after}))
    )


def _read(root: Path) -> Mapping[str, Rows]:
    folder = root / PROVENANCE
    if not folder.is_dir():
        raise BadInput(f"{root} has no {PROVENANCE}/: give folders that `tuner export` wrote")
    return {
        path.relative_to(folder).as_posix(): _rows(path) for path in sorted(folder.rglob("*.json"))
    }


def _rows(path: Path) -> Rows:
    try:
        entries = json.loads(path.read_bytes())["entries"]
        rows = entries if isinstance(entries, dict) else {_size(row): row for row in entries}
        return {size: _row(row) for size, row in rows.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"{path} is no sidecar of an export: {error}") from None


def _row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields that are compared: times in microseconds, None if there is none."""
    return {
        "status": Status(row["status"]).value,
        "config": row["config"],
        "us": _time(row.get("median_us")),
        "own_us": _without_us(row),
    }


def _time(us: Any) -> float | None:  # noqa: ANN401  # of JSON
    if us is not None and not 0 <= us < inf:
        raise ValueError(f"{us!r} is no time")
    return us or None


def _size(row: Mapping[str, Any]) -> str:
    """Return the size of an entry of a list: the fields before its configuration."""
    fields = [f"{k}={v}" for k, v in row.items() if isinstance(v, int | str) and k != "status"]
    return ",".join(fields[: next((i for i, k in enumerate(row) if k == "config"), None)])


def _diff(name: str, old: Rows | None, new: Rows | None) -> FileDiff:
    shown = new if new is not None else old or {}
    before, after = old or {}, new or {}
    changed = tuple(
        size
        for size in {**before, **after}
        if before.get(size, {}).get("config") != after.get(size, {}).get("config")
    )
    if old is None or new is None:
        change = "added" if old is None else "removed"
    else:
        change = "changed" if changed else "the same"
    return FileDiff(
        file=name,
        change=change,
        entries=len(shown),
        changed=changed,
        statuses=dict(Counter(row["status"] for row in shown.values())),
        before=_gain(before.values()),
        after=_gain(after.values()),
        faster=_faster(before, after, changed),
    )


def _faster(before: Rows, after: Rows, sizes: Iterable[str]) -> float | None:
    """Return the mean of the sizes that are timed alike, measured or predicted, in both. An entry
    for several points has no time of its own.
    """
    pairs = [(before[one], after[one]) for one in sizes if one in before and one in after]
    return mean_gain(
        old["us"] / new["us"]
        for old, new in pairs
        if old["us"] and new["us"] and old["status"] == new["status"]
    )


def _gain(rows: Iterable[Mapping[str, Any]]) -> float | None:
    return mean_gain(row["own_us"] / row["us"] for row in rows if row["us"] and row["own_us"])


def _without_us(row: Mapping[str, Any]) -> float | None:
    """Return the time of the servers' kernel without this program, else of the engine's
    configuration.
    """
    incumbents = row.get("incumbents", {})
    for name in (row.get("without_us"), *OWN):
        if name in incumbents and (us := _time(incumbents[name].get("median_us"))):
            return us
    return None

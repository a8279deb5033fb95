"""Make the files that the plugin reads (`plugin/files.py`) from attention's winners.

A winner holds for a point. A server that launches a kernel does not know the cached tokens, so a
file has an entry per *bucket*: all points that differ only in their cached tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from tuner.bindings.sglang.attention.kv_splits import (
    Rows,
    at_launch,
    kv_splits_of,
    splits_fields,
    splits_table,
)
from tuner.bindings.sglang.plugin.files import (
    FOLDER,
    AttentionEntry,
    AttentionFile,
    read_attention_file,
)
from tuner.engines.config_files import PROVENANCE, read_sidecar
from tuner.errors import ExportRefused, MalformedConfigFile
from tuner.export.delivery import read_back
from tuner.export.files import provenance_row, sidecar_fields
from tuner.families.attention.problem import Attention, BucketKey, bucket_of
from tuner.families.attention.splits import constants_of
from tuner.problems.points import Config
from tuner.problems.results import Entry, Status, Winner


@dataclass(frozen=True)
class AttentionFileExport:
    """An attention file to write: a problem for a device and a Triton version."""

    path: Path
    file: AttentionFile
    provenance: Mapping[str, Any]  # the sidecar's JSON

    missing = ()  # no engine has files of its own, whose sizes it could lack

    def text(self) -> str:
        return self.file.text()

    @property
    def problem(self) -> Attention:
        return self.file.problem

    @property
    def triton(self) -> str:
        return self.file.triton

    @property
    def statuses(self) -> Mapping[BucketKey, Status]:
        return {entry.bucket: entry.status for entry in self.file.entries}

    @property
    def sidecar(self) -> Path:
        """Return `<root>/provenance/attention/<Triton's folder>/<name>`."""
        return _sidecar(self.path)

    def as_json(self) -> dict[str, Any]:
        """Return the fields of `tuner export --json` that only this family has."""
        buckets = [_bucket_fields(entry.bucket) for entry in self.file.entries]
        return {"buckets": buckets, "server_flags": dict(self.file.server_flags)}

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a bundle manifest's row for each entry."""
        content = json.loads(self.text())["entries"]
        for row, entry in zip(self.provenance["entries"], content, strict=True):
            points = row["points"]
            yield {
                "problem": self.provenance["problem"],
                **{k: row[k] for k in ("part", "batch_size", "new_tokens", "status")},
                # By cached tokens: the entry serves them all.
                "median_us": {str(p["cached_tokens"]): p["median_us"] for p in points},
                "reason": "; ".join(dict.fromkeys(p["reason"] for p in points)),
                **{k: points[0][k] for k in ("environment", "published_at")},
                "config": entry["config"],
                **kv_splits_of(points),
            }

    def with_flags(self, flags: Mapping[str, int | str]) -> AttentionFileExport:
        """Return the same entries, for servers that are started with these flags."""
        file = replace(self.file, server_flags=dict(flags))
        described = sidecar_fields(self.path.name, file.text())
        return AttentionFileExport(self.path, file, {**self.provenance, **described})


def build_attention_files(winners: Sequence[Winner], root: Path) -> list[AttentionFileExport]:
    """Return the files to write under a root. Predicted entries do not replace measured entries of
    an earlier export.

    Raises ExportRefused if the points of a bucket have different configurations.
    """
    by_file = groupby(sorted(winners, key=_file_key), key=_file_key)
    return [_built(list(group), root) for _, group in by_file]


def verify_attention(export: AttentionFileExport, written: Path) -> None:
    """Check that the file `written` reads as the entries of `export`. Raises ExportRefused if
    not.
    """
    name = export.path.name
    read_back(name, written, read_attention_file, export.file)
    for entry in export.file.entries:
        picked = export.file.pick(*entry.bucket)
        if picked != entry:
            raise ExportRefused(f"{name}: {picked} is picked instead of {entry}")


def _file_key(winner: Winner) -> tuple[str, str]:
    return winner.problem.spec(), winner.environment.triton


def _built(winners: list[Winner], root: Path) -> AttentionFileExport:
    empty = _empty_file(winners)
    path = empty.path_under(root)
    # A file holds for one version of the kernels. Winners for other versions are out of date.
    current = [w for w in winners if w.environment.kernel_hash == empty.kernel_hash]
    buckets: dict[BucketKey, list[Winner]] = {}
    for winner in current:
        buckets.setdefault(bucket_of(winner.entry.point), []).append(winner)
    new = {bucket: _bucket_row(bucket, group) for bucket, group in buckets.items()}
    rows = _with_earlier(new, _measured_earlier(path, empty), empty.problem)
    parts = empty.problem.parts
    ordered = sorted(rows, key=lambda bucket: (parts.index(bucket[0]), *bucket[1:]))
    entries = tuple(_entry(bucket, rows[bucket]) for bucket in ordered)
    file = replace(empty, entries=entries, splits=splits_table(empty.problem, rows))
    provenance = {
        **sidecar_fields(path.name, file.text()),
        "problem": file.problem.spec(),
        "entries": [rows[bucket] for bucket in ordered],
    }
    return AttentionFileExport(path, file, provenance)


def _empty_file(winners: Sequence[Winner]) -> AttentionFile:
    """Return the file without its entries, for the kernels of the newest winner."""
    newest = max(winners, key=lambda winner: winner.published_at)
    problem, environment = newest.problem, newest.environment
    assert isinstance(problem, Attention)
    return AttentionFile(
        problem,
        environment.device,
        environment.engine,
        environment.engine_version,
        environment.triton,
        environment.kernel_hash,
        entries=(),
        server_flags={},
    )


def _bucket_fields(bucket: BucketKey) -> dict[str, Any]:
    return {"part": bucket[0].value, "batch_size": bucket[1], "new_tokens": bucket[2]}


def _bucket_row(bucket: BucketKey, winners: Sequence[Winner]) -> dict[str, Any]:
    """Return the sidecar's row for a bucket: its entry, and each of its points."""
    first = winners[0].entry
    shared = [w.entry.compiled.shared_bytes for w in winners]
    points = [
        {
            "cached_tokens": w.entry.point.cached_tokens,
            **splits_fields(w.entry.config),
            **provenance_row(w),
        }
        for w in sorted(winners, key=lambda w: w.entry.point)
    ]
    return {
        **_bucket_fields(bucket),
        "config": dict(constants_of(first.config)),
        "status": _bucket_status(winners).value,
        "shared_bytes": max((n for n in shared if n is not None), default=None),
        "points": points,
    }


def _bucket_status(winners: Sequence[Winner]) -> Status:
    """Return the weakest status of the points; INCUMBENT if the engine's own constants were kept.

    Decode with chosen splits names its constants even then, because sglang's own launch would use
    the room of the longest choice. Raises ExportRefused if configurations of the points differ.
    """
    entries = [winner.entry for winner in winners]
    first = entries[0]
    problem = winners[0].problem
    assert isinstance(problem, Attention)
    if all(_is_default(entry) for entry in entries) and not problem.chooses_splits:
        return Status.INCUMBENT
    for other in entries[1:]:
        if at_launch(other.config) != at_launch(first.config):
            if all(_is_default(entry) for entry in entries):
                return Status.INCUMBENT  # keep the engine's own constants, which differ here
            raise ExportRefused(
                f"{winners[0].problem.spec()}: {first.point} has {first.config.key} and "
                f"{other.point} has {other.config.key}, but a server cannot tell them apart: "
                "tune them in one run"
            )
    known = {entry.status for entry in entries}
    return next(s for s in (Status.PREDICTED, Status.INCUMBENT, Status.OK) if s in known)


def _is_default(entry: Entry) -> bool:
    """Say whether the entry is the engine's own configuration."""
    default = entry.incumbents.get("default")
    return default is not None and default.config == entry.config


def _is_measured(row: Mapping[str, Any]) -> bool:
    return all(point["status"] == Status.OK.value for point in row["points"])


def _with_earlier(rows: Rows, earlier: Rows, problem: Attention) -> Rows:
    """Return the rows, with earlier measured rows in place of missing or predicted rows.

    Rows that share their splits were chosen together, so they are replaced together.
    """

    def group(bucket: BucketKey) -> tuple[object, ...]:
        return bucket[1:] if problem.chooses_splits else bucket

    together = len(problem.parts) if problem.chooses_splits else 1
    kept = dict(rows)
    for key in {group(bucket) for bucket in earlier}:
        old = {bucket: row for bucket, row in earlier.items() if group(bucket) == key}
        new = {bucket: row for bucket, row in rows.items() if group(bucket) == key}
        if len(old) == together and not (new and all(map(_is_measured, new.values()))):
            kept = {**{b: row for b, row in kept.items() if b not in new}, **old}
    return kept


def _entry(bucket: BucketKey, row: Mapping[str, Any]) -> AttentionEntry:
    config, status = Config(row["config"]), Status(row["status"])
    return AttentionEntry(*bucket, config, status, row["shared_bytes"])


def _sidecar(path: Path) -> Path:
    root, folder = path.parents[2], path.parent.name
    return root / PROVENANCE / FOLDER / folder / path.name


def _measured_earlier(path: Path, new: AttentionFile) -> Rows:
    """Return the measured rows of an existing file, if it is ours and has the same kernels."""
    provenance = read_sidecar(path, _sidecar(path)) or {}
    try:
        old = read_attention_file(path)
        told = {(r["part"], r["batch_size"], r["new_tokens"]): r for r in provenance["entries"]}
        rows = [(e, told[e.part.value, e.batch_size, e.new_tokens]) for e in old.entries]
        # Servers read the file, so rows in which the sidecar contradicts it are dropped.
        believed = {e.bucket: row for e, row in rows if _entry(e.bucket, row) == e}
        if old.splits != splits_table(old.problem, believed):
            return {}
        kept = {bucket: row for bucket, row in believed.items() if _is_measured(row)}
    except (MalformedConfigFile, ExportRefused, ValueError, KeyError, TypeError):
        return {}
    return kept if replace(old, entries=(), server_flags={}, splits=None) == new else {}

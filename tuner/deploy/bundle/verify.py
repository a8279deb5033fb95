"""Check a bundle in memory, without extracting anything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.deploy.bundle.archive import LARGEST_ARCHIVE, BundleFile, unpack
from tuner.deploy.bundle.manifest import NAME, SUMS, check_files, read_manifest, sha256, sums_text
from tuner.errors import BadInput, BundleRefused
from tuner.render import printable

# Batch size; for attention: (part, sequences, new tokens, status).
_EntryKey = str | tuple[str, str, str, str]


@dataclass(frozen=True)
class Verified:
    """A bundle that passed all checks."""

    path: Path
    sha256: str  # of the archive
    manifest: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """What `tuner bundle verify --json` prints."""
        return {
            "path": str(self.path),
            "sha256": self.sha256,
            **{k: self.manifest[k] for k in ("name", "tool", "cluster", "device", "configs")},
            "statuses": self.manifest["statuses"],
            "files": len(self.manifest["files"]),
            "notes": self.manifest["notes"],
        }

    def as_text(self) -> str:
        statuses = ", ".join(f"{n} {s}" for s, n in self.manifest["statuses"].items())
        lines = [
            f"{self.path}: holds",
            f"sha256     {self.sha256}",
            f"bundle     {self.manifest['name']}, {len(self.manifest['files'])} files",
            f"entries    {statuses or 'none'}",
        ]
        lines += [f"note: {note}" for note in self.manifest["notes"]]
        return "\n".join(printable(line) for line in lines)


def verify(path: Path) -> Verified:
    """Check an archive. Raises BundleRefused, or BadInput if the file cannot be read."""
    data = read_at_most(path, LARGEST_ARCHIVE + 1)
    return Verified(path, sha256(data), check_bundle(data))


def check_bundle(data: bytes) -> dict[str, Any]:
    """Check an archive and return its manifest. Raises BundleRefused."""
    archive = unpack(data)
    root, files = archive.root, archive.files
    if NAME not in files:
        raise BundleRefused(f"the archive holds no {NAME}")
    manifest = read_manifest(files[NAME].data)
    if manifest["name"] != root:
        raise BundleRefused(f"{NAME} is of {manifest['name']!r}, and the folder is {root!r}")
    check_files(manifest, files)
    _check_sums(files)
    _check_entries(manifest, files)
    if not archive.as_written:
        raise BundleRefused("the archive was repacked, or holds more than its files")
    return manifest


def read_at_most(path: Path, limit: int) -> bytes:
    """At most `limit` bytes of a file. Raises BadInput."""
    try:
        with path.open("rb") as file:
            return file.read(limit)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from None


def _check_sums(files: Mapping[str, BundleFile]) -> None:
    summed = {path: file for path, file in files.items() if path not in (NAME, SUMS)}
    if SUMS not in files or files[SUMS].data != sums_text(summed).encode():
        raise BundleRefused(f"{SUMS} does not say what {NAME} says")


def _check_entries(manifest: Mapping[str, Any], files: Mapping[str, BundleFile]) -> None:
    """Check that the manifest lists exactly the entries of the tuned files."""
    listed: dict[str, dict[_EntryKey, Any]] = {}
    counts: dict[str, int] = {}
    for row in manifest["entries"]:
        try:
            held = listed.setdefault(str(row["file"]), {})
            held[_entry_key(row)] = row["config"]
            counts[str(row["status"])] = counts.get(str(row["status"]), 0) + 1
        except (TypeError, KeyError):
            raise BundleRefused(f"{NAME}: an entry lacks a field") from None
    if counts != manifest["statuses"]:
        raise BundleRefused(f"{NAME} counts its entries wrongly")
    tuned = {row["path"] for row in manifest["files"] if row["origin"] == "tuned"}
    if listed.keys() != tuned:
        raise BundleRefused(f"{NAME} does not give the provenance of every tuned file")
    for path, entries in listed.items():
        if _entries_of(files[path]) != entries:
            raise BundleRefused(f"{path!r} holds other entries than {NAME} says")


def _entry_key(row: Mapping[str, Any]) -> _EntryKey:
    """The key of a row's entry in its file."""
    if "part" not in row:
        return str(row["batch_size"])
    return str(row["part"]), str(row["batch_size"]), str(row["new_tokens"]), str(row["status"])


def _entries_of(file: BundleFile) -> object:
    """The configuration of every entry by its key; None where the file is malformed."""
    try:
        value = json.loads(file.data)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict):
        value.pop("triton_version", None)
        if isinstance(value.get("entries"), list):
            return _attention_entries(value["entries"])
    return value


def _attention_entries(rows: Sequence[Any]) -> dict[_EntryKey, Any] | None:
    try:
        found = {_entry_key(row): row["config"] for row in rows}
    except (TypeError, KeyError):
        return None
    return found if len(found) == len(rows) else None

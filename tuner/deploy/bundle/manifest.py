"""MANIFEST.json: what it says of each file and entry, and the check of a bundle against it.

A bundle is checked in memory; nothing is extracted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.deploy.bundle.archive import LARGEST_ARCHIVE, MODES, BundleFile, checked_path, unpack
from tuner.errors import BadInput, BundleRefused
from tuner.render import printable

CONFIGS = "engine-configs"  # in the bundle
NAME = "MANIFEST.json"
SUMS = "SHA256SUMS"
KIND = "engine-tuner bundle"
FORMAT = 2
_DIGEST = "digest"
_FIELDS = {
    "kind": str,
    "format": int,
    "name": str,
    "tool": str,
    "cluster": dict,
    "device": str,
    "configs": dict,
    "environments": list,
    "keys": dict,
    "statuses": dict,
    "entries": list,
    "notes": list,
    "files": list,
}
_FILE_FIELDS = {"path": str, "size": int, "mode": str, "sha256": str, "origin": str}


def file_rows(files: Mapping[str, BundleFile], origins: Mapping[str, str]) -> list[dict[str, Any]]:
    """The manifest's rows for files. A file without an origin was made for this bundle."""
    return [
        {
            "path": path,
            "size": len(file.data),
            "mode": f"{file.mode:04o}",
            "sha256": sha256(file.data),
            "origin": origins.get(path, "made for this bundle"),
        }
        for path, file in sorted(files.items())
    ]


def sums_text(files: Mapping[str, BundleFile]) -> str:
    """The text that `sha256sum -c` reads."""
    return "".join(f"{sha256(file.data)}  {path}\n" for path, file in sorted(files.items()))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def manifest_text(fields: Mapping[str, Any]) -> str:
    """MANIFEST.json, with a digest of its other fields."""
    digest = sha256(_dump(fields).encode())
    return _dump({**fields, _DIGEST: digest})


def read_manifest(data: bytes) -> dict[str, Any]:
    """Read a manifest and check its digest and its fields. Raises BundleRefused."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_once, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BundleRefused(f"{NAME} is not JSON: {error}") from None
    if not isinstance(value, dict) or value.get("kind") != KIND:
        raise BundleRefused(f"{NAME} is not of an {KIND}")
    _check_format(value.get("format"))
    value.pop(_DIGEST, None)
    if not _is_text_of(value, data):
        raise BundleRefused(f"{NAME} was changed: its digest does not match its content")
    _check_fields(value, _FIELDS, NAME)
    for row in value["files"]:
        _check_fields(row, _FILE_FIELDS, f"{NAME}: files")
        checked_path(row["path"])
        if row["mode"] not in [f"{mode:04o}" for mode in MODES]:
            raise BundleRefused(f"{NAME}: {row['path']!r} has the mode {row['mode']!r}")
    paths = [row["path"] for row in value["files"]]
    if paths != sorted(set(paths)):
        raise BundleRefused(f"{NAME} lists a file twice, or not in order")
    return value


def check_files(manifest: Mapping[str, Any], files: Mapping[str, BundleFile]) -> None:
    """Compare the manifest's rows with the archive's files. Raises BundleRefused."""
    listed = {row["path"]: row for row in manifest["files"]}
    for path in sorted(files.keys() - listed.keys() - {NAME}):
        raise BundleRefused(f"{path!r} is not listed in {NAME}")
    for path, row in listed.items():
        file = files.get(path)
        if file is None:
            raise BundleRefused(f"{path!r} is listed in {NAME} and missing")
        if len(file.data) != row["size"]:
            raise BundleRefused(f"{path!r} has {len(file.data)} bytes, not {row['size']}")
        if sha256(file.data) != row["sha256"]:
            raise BundleRefused(f"{path!r} was changed: its SHA-256 is not the one in {NAME}")
    # Modes last: for a changed and repacked file, the changed contents matter more.
    modes = {NAME: "0644", **{path: row["mode"] for path, row in listed.items()}}
    for path, mode in modes.items():
        if f"{files[path].mode:04o}" != mode:
            raise BundleRefused(f"{path!r} has the mode {files[path].mode:04o}, not {mode}")


def _dump(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, indent=1) + "\n"


def _is_text_of(fields: Mapping[str, Any], data: bytes) -> bool:
    try:
        return manifest_text(fields).encode() == data
    except RecursionError:
        return False


def _check_format(found: object) -> None:
    if isinstance(found, bool) or not isinstance(found, int):
        raise BundleRefused(f"{NAME} names no format")
    if found < FORMAT:
        raise BundleRefused(
            f"{NAME} has the older format {found}, this version reads {FORMAT}: bundle again"
        )
    if found > FORMAT:
        raise BundleRefused(
            f"{NAME} has the newer format {found}, this version reads {FORMAT}: update the tuner"
        )


def _check_fields(value: object, fields: Mapping[str, type], where: str) -> None:
    if not isinstance(value, dict) or value.keys() != fields.keys():
        raise BundleRefused(f"{where} does not hold {', '.join(fields)}")
    for name, kind in fields.items():
        if not isinstance(value[name], kind) or isinstance(value[name], bool):
            raise BundleRefused(f"{where}: {name} is of the wrong kind")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a name is given twice")
    return value


def _refuse(text: str) -> object:
    raise ValueError(f"{text} is not a JSON value")


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

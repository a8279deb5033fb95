"""Write and read MANIFEST.json, which describes each file and entry of a bundle."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.deploy.bundle.archive import BundleFile
from tuner.errors import BundleRefused

CONFIGS = "engine-configs"  # in the bundle
NAME = "MANIFEST.json"
SUMS = "SHA256SUMS"
KIND = "engine-tuner bundle"
FORMAT = 2
_LARGEST = 256 << 20  # bytes of an archive, once decompressed


def file_rows(files: Mapping[str, BundleFile], origins: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the manifest's rows for files. A file without an origin was made for this bundle."""
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
    """Return the text that `sha256sum -c` reads."""
    return "".join(f"{sha256(file.data)}  {path}\n" for path, file in sorted(files.items()))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def manifest_text(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, indent=1) + "\n"


def read_manifest(bundle: Path) -> dict[str, Any]:
    """Return the manifest of a bundle's archive, or of its unpacked folder. Raises
    BundleRefused.
    """
    try:
        value = json.loads(_manifest_bytes(bundle))
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise BundleRefused(f"{bundle} is no archive of a bundle, or is damaged: {error}") from None
    except (ValueError, RecursionError) as error:
        raise BundleRefused(f"{NAME} is not JSON: {error}") from None
    if not isinstance(value, dict) or value.get("kind") != KIND:
        raise BundleRefused(f"{NAME} is not of an {KIND}")
    if value.get("format") != FORMAT:
        raise BundleRefused(
            f"{NAME} has the format {value.get('format')}, this version reads {FORMAT}: bundle "
            "again, or update the tuner"
        )
    return value


def _manifest_bytes(bundle: Path) -> bytes:
    if bundle.is_dir():
        with (bundle / NAME).open("rb") as file:
            return file.read(_LARGEST)
    # All of it is decompressed, which finds damage by gzip's own checksum; nothing is extracted.
    with gzip.open(bundle) as packed:
        content = packed.read(_LARGEST)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            if member.isreg() and member.name.count("/") == 1 and member.name.endswith(f"/{NAME}"):
                found = archive.extractfile(member)
                return found.read() if found else b""
    raise BundleRefused(f"the archive holds no {NAME}")

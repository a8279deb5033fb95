"""Pack files into an archive.

An archive is a gzipped tar with regular files below one folder, sorted, without owners and times.
So its bytes depend only on the files.
"""

from __future__ import annotations

import io
import struct
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

# 1980, because tar programs warn about the time 0.
_TIME = 315_532_800
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff"  # no name, no time, unknown system


@dataclass(frozen=True)
class BundleFile:
    """A file of a bundle."""

    data: bytes
    mode: int = 0o644


def pack(root: str, files: Mapping[str, BundleFile]) -> bytes:
    """Pack `files` (paths below `root`). Equal files give equal bytes."""
    return _gzip(plain_tar(root, files))


def plain_tar(root: str, files: Mapping[str, BundleFile]) -> bytes:
    """Return the archive before compression."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(files):
            info = tarfile.TarInfo(f"{root}/{path}")
            info.size, info.mode, info.mtime = len(files[path].data), files[path].mode, _TIME
            archive.addfile(info, io.BytesIO(files[path].data))
    return out.getvalue()


def _gzip(data: bytes) -> bytes:
    # The gzip module writes other headers in other versions of Python.
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = packer.compress(data) + packer.flush()
    return _GZIP_HEADER + body + struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)

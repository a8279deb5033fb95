"""Pack files into an archive, and unpack it in memory.

An archive is a gzipped tar with regular files below one folder, sorted, without owners and times.
So its bytes depend only on the files. `Unpacked.as_written` tells whether packing the files again
gives the same tar; if so, the tar holds nothing else.
"""

from __future__ import annotations

import io
import struct
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tuner.errors import BundleRefused

LARGEST_ARCHIVE = 64 << 20  # bytes; the bundles of sglang are under 1 MiB
LARGEST_CONTENT = 256 << 20  # bytes once decompressed
MOST_FILES = 20_000
MODES = (0o644, 0o755)
# 1980, because tar programs warn about the time 0.
_TIME = 315_532_800
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff"  # no name, no time, unknown system


@dataclass(frozen=True)
class BundleFile:
    """A file of a bundle."""

    data: bytes
    mode: int = 0o644


@dataclass(frozen=True)
class Unpacked:
    """The contents of an archive."""

    root: str
    files: Mapping[str, BundleFile]  # path below the root
    as_written: bool


def pack(root: str, files: Mapping[str, BundleFile]) -> bytes:
    """Pack `files` (paths below `root`). Equal files give equal bytes."""
    return _gzip(plain_tar(root, files))


def unpack(data: bytes) -> Unpacked:
    """Read an archive. Raises BundleRefused, which names the first fault."""
    if len(data) > LARGEST_ARCHIVE:
        raise BundleRefused(f"the archive is larger than {LARGEST_ARCHIVE >> 20} MiB")
    tar = _gunzip(data)
    files: dict[str, BundleFile] = {}
    root = ""
    for member, content in _members(tar):
        top, _, path = checked_path(member.name).partition("/")
        root = root or top
        if top != root or (not path and not member.isdir()):
            raise BundleRefused(f"{member.name!r} does not lie in the folder {root!r}")
        if member.isdir():
            continue  # other tar programs add folders; `as_written` is then false
        if path in files:
            raise BundleRefused(f"{member.name!r} is in the archive twice")
        if len(files) == MOST_FILES:
            raise BundleRefused(f"the archive holds more than {MOST_FILES} files")
        files[path] = BundleFile(content, member.mode)
    return Unpacked(root, files, plain_tar(root, files) == tar)


def checked_path(name: str) -> str:
    """Return `name` if it is a relative path that stays below its folder.

    Raises BundleRefused.
    """
    if name.startswith("/") or "\\" in name or not name.isprintable():
        raise BundleRefused(f"{name!r} is not a relative path of plain names")
    parts = name.split("/")
    if ".." in parts:
        raise BundleRefused(f"{name!r} leads out of the bundle")
    if "" in parts or "." in parts:
        raise BundleRefused(f"{name!r} is not a relative path of plain names")
    return name


def plain_tar(root: str, files: Mapping[str, BundleFile]) -> bytes:
    """The archive before compression."""
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


def _gunzip(data: bytes) -> bytes:
    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        content = unpacker.decompress(data, LARGEST_CONTENT + 1)
    except zlib.error:
        raise BundleRefused("the archive is no gzip file, or a damaged one") from None
    if len(content) > LARGEST_CONTENT:
        raise BundleRefused(f"the archive unpacks to more than {LARGEST_CONTENT >> 20} MiB")
    if not unpacker.eof:
        raise BundleRefused("the archive is cut off")
    if unpacker.unused_data:
        raise BundleRefused("bytes follow the end of the archive")
    return content


def _members(tar: bytes) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    try:
        # Needs no tarfile filter: each member is checked here, and nothing is extracted.
        with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as archive:
            for member in archive:
                _check_kind(member)
                file = archive.extractfile(member)
                yield member, file.read() if file else b""
    except (tarfile.TarError, ValueError, KeyError, OverflowError, EOFError, OSError):
        raise BundleRefused("the archive holds no tar, or a damaged one") from None


def _check_kind(member: tarfile.TarInfo) -> None:
    if member.issym() or member.islnk():
        raise BundleRefused(f"{member.name!r} is a link, to {member.linkname!r}")
    if member.isdev():
        raise BundleRefused(f"{member.name!r} is a device or a pipe")
    if not member.isdir() and (member.type != tarfile.REGTYPE or member.issparse()):
        raise BundleRefused(f"{member.name!r} is not a plain file")

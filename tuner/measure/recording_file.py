"""Recordings on disk. A file is read whole or refused, and written whole or not at all."""

from __future__ import annotations

import gzip
import io
import tempfile
import zlib
from pathlib import Path

from tuner.errors import MalformedRecording, UnwritableOutput
from tuner.limited_file import read_limited

MAX_BYTES = 256 << 20  # unpacked; a recording of 12,000 rows has about 1.3 MB


def read_packed(path: Path) -> bytes:
    """A recording's bytes as they are on disk. Raises MalformedRecording."""
    return read_limited(path, MAX_BYTES, "recording", MalformedRecording)


def unpack(path: Path, data: bytes) -> str:
    """The text in a gzip file's bytes; `path` is for messages. Raises MalformedRecording."""
    try:
        with gzip.open(io.BytesIO(data)) as stream:
            unpacked = stream.read(MAX_BYTES + 1)
    except gzip.BadGzipFile as error:
        if not is_packed(data):
            raise MalformedRecording(f"{path} is not a gzip file") from None
        raise MalformedRecording(f"{path} is damaged: {error}") from None
    except (EOFError, zlib.error) as error:
        raise MalformedRecording(f"{path} is damaged: {error}") from None
    if len(unpacked) > MAX_BYTES:
        raise MalformedRecording(f"{path} unpacks to more than {MAX_BYTES >> 20} MiB")
    return decode(path, unpacked)


def is_packed(data: bytes) -> bool:
    return data.startswith(b"\x1f\x8b")


def decode(path: Path, data: bytes) -> str:
    """The text of UTF-8 bytes; `path` is for messages. Raises MalformedRecording."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedRecording(f"{path} is damaged: {error}") from None


def prove_recordable(path: Path) -> None:
    """Raise UnwritableOutput where no recording can be written to `path`."""
    if not path.name.endswith(".csv.gz"):
        raise UnwritableOutput(f"a recording is a .csv.gz file, which {path} is not")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UnwritableOutput(f"{path} cannot be written: {error.strerror}") from None


def write_text(path: Path, text: str) -> None:
    """Write a recording, compressed where its name ends in .gz. Raises UnwritableOutput."""
    part = path.with_name(path.name + ".part")
    data = text.encode()
    try:
        # Without a name and a time in the header, equal trials give equal files.
        part.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        part.replace(path)
    except OSError as error:
        raise UnwritableOutput(f"{path} cannot be written: {error.strerror}") from None

"""The file around a recording's rows: read whole or refused, written whole or not at all."""

from __future__ import annotations

import gzip
import io
import tempfile
import zlib
from pathlib import Path

from tuner.errors import MalformedRecording, UnwritableOutput

MAX_BYTES = 256 << 20  # unpacked: a recording of 12,000 rows is a 200th of it


def read_packed(path: Path) -> bytes:
    """A recording's bytes as they are on disk. Raises MalformedRecording."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise MalformedRecording(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise MalformedRecording(f"{path} is larger than {MAX_BYTES >> 20} MiB")
    return data


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
    """Raises MalformedRecording for what is not UTF-8; `path` is for messages."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedRecording(f"{path} is damaged: {error}") from None


def prove_recordable(path: Path) -> None:
    """Raises UnwritableOutput where `path` is no place for a recording."""
    if not path.name.endswith(".csv.gz"):
        raise UnwritableOutput(f"a recording is a .csv.gz file, which {path} is not")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UnwritableOutput(f"{path} cannot be written: {error.strerror}") from None


def write_text(path: Path, text: str) -> None:
    """Write a recording, packed where its name ends in .gz. Raises UnwritableOutput."""
    part = path.with_name(path.name + ".part")
    data = text.encode()
    try:
        # No name and no time in the header: the same trials make the same file.
        part.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        part.replace(path)
    except OSError as error:
        raise UnwritableOutput(f"{path} cannot be written: {error.strerror}") from None

"""Read files of unknown size up to a limit.

Apart from `toml_table` because the attention plugin uses it inside a server, which may have no
TOML parser.
"""

from __future__ import annotations

from pathlib import Path

from tuner.errors import BadInput


def read_limited(path: Path, limit: int, kind: str, error: type[BadInput]) -> bytes:
    """A file's bytes. Raises `error` for a file that cannot be read or is larger than `limit`.

    `limit` is in bytes, a multiple of 1 MiB; `kind` names the expected file, e.g. "config.json".
    """
    text = str(path)
    where = text if text.isprintable() and len(text) < 300 else repr(text[:200])
    try:
        with path.open("rb") as stream:
            data = stream.read(limit + 1)
    except (OSError, ValueError) as cause:  # ValueError: the name holds a NUL
        reason = getattr(cause, "strerror", None) or cause
        raise error(f"{where}: cannot be read: {reason}") from None
    if len(data) > limit:
        raise error(f"{where}: larger than {limit >> 20} MiB, no {kind}")
    return data

"""A file of captured routings, handled without torch by the process that starts a run."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import BadInput


@dataclass(frozen=True)
class RoutingFile:
    """A file and its hash when the run began; every measuring process must read the same bytes."""

    path: Path
    sha256: str

    def read(self) -> bytes:
        """The file's bytes. Raises BadInput where it cannot be read or has changed."""
        data = _read(self.path)
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise BadInput(f"{self.path} has changed since the run began: run it again")
        return data


def find_routing_file(path: Path) -> RoutingFile:
    """The file as it is now. Raises BadInput where it cannot be read."""
    return RoutingFile(path, hashlib.sha256(_read(path)).hexdigest())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from None

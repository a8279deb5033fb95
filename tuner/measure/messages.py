"""Handle the messages between a run and the child that owns a GPU, without torch.

The messages are JSON; a run also names a file of captured routings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tuner.errors import BadInput
from tuner.problems.points import Point
from tuner.problems.registry import read_part
from tuner.problems.results import Measurement, Status


def point_fields(point: Point) -> dict[str, Any]:
    """Return a point as a request holds it; `read_point` reads it back."""
    return {**asdict(point), "part": point.part.value}


def read_point(request: Mapping[str, Any]) -> Point:
    return Point(
        batch_size=request["batch_size"],
        part=read_part(request["part"]),
        new_tokens=request["new_tokens"],
        cached_tokens=request["cached_tokens"],
    )


def measurement_fields(measurement: Measurement) -> dict[str, Any]:
    """Return a measurement as an answer holds it; `read_measurement` reads it back."""
    return {**asdict(measurement), "status": measurement.status.value}


def read_measurement(answer: Mapping[str, Any]) -> Measurement:
    return Measurement(**{**answer, "status": Status(answer["status"])})


@dataclass(frozen=True)
class RoutingFile:
    """A file and its hash when the run began; every measuring process must read the same bytes."""

    path: Path
    sha256: str

    def read(self) -> bytes:
        """Return the file's bytes. Raises BadInput if it cannot be read or has changed."""
        data = _read(self.path)
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise BadInput(f"{self.path} has changed since the run began: run it again")
        return data


def find_routing_file(path: Path) -> RoutingFile:
    """Return the file as it is now. Raises BadInput if it cannot be read."""
    return RoutingFile(path, hashlib.sha256(_read(path)).hexdigest())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from None

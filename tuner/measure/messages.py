"""JSON messages between a GPU worker and the child process that owns its GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tuner.problems.points import Point
from tuner.problems.registry import read_part
from tuner.problems.results import Measurement, Status


def point_fields(point: Point) -> dict[str, Any]:
    """A point as a request holds it; `read_point` reads it back."""
    return {**asdict(point), "part": point.part.value}


def read_point(request: Mapping[str, Any]) -> Point:
    return Point(
        batch_size=request["batch_size"],
        part=read_part(request["part"]),
        new_tokens=request["new_tokens"],
        cached_tokens=request["cached_tokens"],
    )


def measurement_fields(measurement: Measurement) -> dict[str, Any]:
    """A measurement as an answer holds it; `read_measurement` reads it back."""
    return {**asdict(measurement), "status": measurement.status.value}


def read_measurement(answer: Mapping[str, Any]) -> Measurement:
    return Measurement(**{**answer, "status": Status(answer["status"])})

"""Refuses problems of which no launch fits into a card's memory: nothing could ever run them."""

from __future__ import annotations

from tuner.devices.table import find_device
from tuner.errors import BadProblem
from tuner.jobs.job import JobRequest
from tuner.problems.registry import family_of

_GIB = 1 << 30


def refuse_too_large(request: JobRequest) -> None:
    """Raises BadProblem if the smallest launch that a job selects needs more than the card has."""
    if not request.points:
        return  # a replay of all that its recording has
    held_bytes = family_of(request.problem).module("roofline").held_bytes
    point = min(request.points, key=lambda one: held_bytes(request.problem, one))
    needed = held_bytes(request.problem, point)
    device = find_device(request.device)
    if needed > device.memory_bytes:
        raise BadProblem(
            f"{request.problem.spec()} does not fit on {device.name}: its smallest launch, "
            f"{point}, needs {needed / _GIB:,.1f} GiB, and the card has "
            f"{device.memory_bytes // _GIB} GiB"
        )

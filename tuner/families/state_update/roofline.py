"""The least time of a state update. No torch."""

from __future__ import annotations

from tuner.devices.roofline import roofline_us
from tuner.devices.table import Device
from tuner.families.state_update.problem import StateUpdate
from tuner.problems.points import Point

_BYTES = 2  # of a number of x, B, C, dt and the output: 16 bits


def least_us(problem: StateUpdate, point: Point, device: Device) -> float:
    """Microseconds of one launch at least; see `roofline_us`.

    Each sequence's states are read and written once. Five operations count for each number of a
    state: decay, the product of x and B, their sum, and the product with C and its sum.
    """
    sequences, rows = point.batch_size, problem.heads * problem.head_dim
    vectors = 2 * rows + 2 * problem.groups * problem.state_size + problem.heads
    return roofline_us(
        device,
        problem.dtype,
        operations=5.0 * sequences * rows * problem.state_size,
        cold_bytes=2.0 * sequences * problem.state_bytes,
        warm_bytes=float(sequences * vectors * _BYTES),
    )


def held_bytes(problem: StateUpdate, point: Point) -> int:
    """Bytes of the card's memory that one launch needs at least: the states."""
    return point.batch_size * problem.state_bytes

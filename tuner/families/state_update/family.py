"""The registry entry of Mamba-2 state updates; importing it loads no heavy module."""

from __future__ import annotations

from tuner.devices.roofline import roofline_us
from tuner.devices.table import Device
from tuner.families.state_update.problem import (
    BATCH_SIZES,
    NAME,
    StateUpdate,
    Update,
    parse_state_update,
    same_states,
)
from tuner.problems.dtypes import STATE_DTYPES, check_state_dtype
from tuner.problems.options import BATCHES, Option, SizeSelection, Word
from tuner.problems.points import ChartPosition, Point
from tuner.problems.registry import Family

_BYTES = 2  # of a number of x, B, C, dt and the output: 16 bits


class StateSelection(SizeSelection):
    """Numbers of sequences."""

    part = Update.STATE
    default = BATCH_SIZES


def place(problem: StateUpdate, point: Point) -> ChartPosition:
    """Where a point is drawn: in one chart, by sequences."""
    return ChartPosition("state update", point.batch_size, "sequences")


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


FAMILY = Family(
    name="state_update",
    title="the state update of Mamba-2 layers",
    flag="--mamba",
    problems=(NAME,),
    example="state_update:heads=..,head_dim=..,state_size=..,groups=..",
    parse=parse_state_update,
    parts=Update,
    shaping=(
        Option(
            "mamba_ssm_cache_dtype",
            "--mamba-ssm-cache-dtype",
            Word(STATE_DTYPES, check_state_dtype),
            "Type of Mamba states, as the server's flag of this name; default: as the engine does.",
            description="Type of Mamba states; default: as the engine does.",
        ),
    ),
    selecting=(BATCHES,),
    searching=(),
    read_selection=StateSelection.read,
    place=place,
    least_us=least_us,
    held_bytes=held_bytes,
    package="tuner.families.state_update",
    alike=same_states,
)

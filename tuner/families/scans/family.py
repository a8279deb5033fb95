"""Make the registry entries of chunked scans; importing it loads no heavy module."""

from __future__ import annotations

from functools import partial

from tuner.devices.roofline import roofline_us
from tuner.devices.table import Device
from tuner.families.scans.scan import (
    ScanProblem,
    all_chunks,
    kernel_of,
    scan_of,
    tokens_of,
)
from tuner.families.scans.selection import PROMPTS, fields_of, read_selection
from tuner.problems.dtypes import STATE_DTYPES, check_state_dtype
from tuner.problems.options import DP, Option, Word
from tuner.problems.points import ChartPosition, Point
from tuner.problems.registry import Family

_SHAPING = (
    DP,
    Option(
        "mamba_state_dtype",
        "--mamba-state-dtype",
        Word(STATE_DTYPES, check_state_dtype),
        "Chunked scans: type of the states in servers; default: as the engine does.",
        description="Type of the states of chunked scans; default: as the engine does.",
        offered=False,
    ),
)
_SELECTING = (
    Option(
        "prompts",
        "--prompts",
        PROMPTS,
        "Chunked scans: sequences x tokens of prefill, e.g. 1x8192,8x2048; "
        "default: 1x1024, 1x8192, 1x32768 and 8x2048.",
        description="Chunked scans: sequences x tokens; default: the usual.",
    ),
)


def _place(problem: ScanProblem, point: Point) -> ChartPosition:
    """Place a point: the charts of a batch's kernels follow each other, by tokens."""
    sequences = f"{point.batch_size} sequence{'s' * (point.batch_size != 1)}"
    kernels = scan_of(problem).title(problem).partition(",")[0]
    return ChartPosition(f"{kernels}, {sequences}", point.new_tokens, "tokens of each sequence")


def _least_us(problem: ScanProblem, point: Point, device: Device) -> float:
    """Return the least microseconds of a launch; see `roofline_us`.

    The inputs of a kernel are warm: the kernel before, or the layer's convolution, wrote them.
    """
    size = tokens_of(point), all_chunks(problem, point)
    return roofline_us(
        device,
        problem.dtype,
        operations=kernel_of(problem, point.part).operations(problem, *size),
        cold_bytes=0.0,
        warm_bytes=float(_held_bytes(problem, point)),
    )


def _held_bytes(problem: ScanProblem, point: Point) -> int:
    """Return the bytes that a kernel reads and writes, which a launch needs of the card's
    memory.
    """
    size = tokens_of(point), all_chunks(problem, point)
    return kernel_of(problem, point.part).moved_bytes(problem, *size)


# Makes the entry of a family whose package lies beside this module.
scan_family = partial(
    Family,
    shaping=_SHAPING,
    selecting=_SELECTING,
    searching=(),
    read_selection=read_selection,
    fields_of=fields_of,
    place=_place,
    least_us=_least_us,
    held_bytes=_held_bytes,
    shared=str(__package__),
    predicts=False,
)

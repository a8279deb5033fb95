"""The registry entry of chunked scans; importing it loads no heavy module."""

from __future__ import annotations

from tuner.devices.roofline import roofline_us
from tuner.devices.table import Device
from tuner.families.chunk_scan.problem import (
    NAME,
    ChunkScan,
    ScanKernel,
    parse_chunk_scan,
    tokens_of,
)
from tuner.families.scans.selection import PROMPTS, read_selection
from tuner.problems.dtypes import STATE_DTYPES, check_state_dtype
from tuner.problems.options import Option, Word
from tuner.problems.points import ChartPosition, Point
from tuner.problems.registry import Family

_BYTES, _WIDE = 2, 4  # of 16-bit numbers, and of float32


def place(problem: ChunkScan, point: Point) -> ChartPosition:
    """Where a point is drawn: the kernels of a batch are one after the other, by tokens."""
    sequences = f"{point.batch_size} sequence{'s' * (point.batch_size != 1)}"
    return ChartPosition(f"chunked scan, {sequences}", point.new_tokens, "tokens of each sequence")


def least_us(problem: ChunkScan, point: Point, device: Device) -> float:
    """Microseconds of one launch at least; see `roofline_us`.

    What a kernel reads was written by the one before, or by the layer's convolution.
    """
    return roofline_us(
        device,
        problem.dtype,
        operations=_operations(problem, point),
        cold_bytes=0.0,
        warm_bytes=float(_moved_bytes(problem, point)),
    )


def _operations(problem: ChunkScan, point: Point) -> float:
    tokens, inner = tokens_of(point), problem.heads * problem.head_dim
    pairs = tokens * problem.chunk_size
    return {
        ScanKernel.CUMSUM: 3.0 * tokens * problem.heads,
        ScanKernel.STATE: 2.0 * tokens * inner * problem.state_size,
        ScanKernel.PASSING: 2.0 * _chunks(problem, point) * inner * problem.state_size,
        ScanKernel.BMM: 2.0 * pairs * problem.groups * problem.state_size,
        # Half of the pairs lie below the diagonal.
        ScanKernel.SCAN: tokens * inner * (2.0 * problem.state_size + problem.chunk_size),
    }[_kernel(point)]


def _moved_bytes(problem: ChunkScan, point: Point) -> int:
    """Bytes that a kernel reads and writes."""
    tokens, inner = tokens_of(point), problem.heads * problem.head_dim
    x, heads = tokens * inner * _BYTES, tokens * problem.heads * _WIDE
    b = tokens * problem.groups * problem.state_size * _BYTES
    states = _chunks(problem, point) * inner * problem.state_size
    kept = states * (_WIDE if problem.state_dtype == "float32" else _BYTES)
    products = tokens * problem.chunk_size * problem.groups * _WIDE
    return {
        ScanKernel.CUMSUM: 2 * heads,
        ScanKernel.STATE: x + b + 2 * heads + states * _WIDE,
        ScanKernel.PASSING: states * _WIDE + kept,
        ScanKernel.BMM: 2 * b + products,
        ScanKernel.SCAN: 2 * x + b + 2 * heads + products + kept,
    }[_kernel(point)]


def _chunks(problem: ChunkScan, point: Point) -> int:
    """The chunks of a point; none has tokens of two sequences."""
    return point.batch_size * problem.chunks(point.new_tokens)


def _kernel(point: Point) -> ScanKernel:
    assert isinstance(point.part, ScanKernel)  # the problem is a scan
    return point.part


def held_bytes(problem: ChunkScan, point: Point) -> int:
    """Bytes of the card's memory that one launch needs at least."""
    return _moved_bytes(problem, point)


FAMILY = Family(
    name=NAME,
    title="the chunked scan of Mamba-2 layers",
    flag="--chunk-scan",
    problems=(NAME,),
    example="chunk_scan:heads=..,head_dim=..,groups=..,state_size=..,chunk_size=..",
    parse=parse_chunk_scan,
    parts=ScanKernel,
    shaping=(
        Option(
            "mamba_state_dtype",
            "--mamba-state-dtype",
            Word(STATE_DTYPES, check_state_dtype),
            "Chunked scan: type of Mamba states in servers; default: as the engine does.",
            description="Type of Mamba states; default: as the engine does.",
        ),
    ),
    selecting=(
        Option(
            "prompts",
            "--prompts",
            PROMPTS,
            "Chunked scan: sequences x tokens of prefill, e.g. 1x8192,8x2048; default: 1x1024, "
            "1x8192, 1x32768 and 8x2048.",
            description="Chunked scan only: sequences x tokens of prefill; default: the usual.",
        ),
    ),
    searching=(),
    read_selection=read_selection,
    place=place,
    least_us=least_us,
    held_bytes=held_bytes,
    package="tuner.families.chunk_scan",
)

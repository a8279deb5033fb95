from __future__ import annotations

from toy_family.problem import Kernel, Scale, parse_scale, read_rows
from tuner.devices.roofline import roofline_us
from tuner.devices.table import Device
from tuner.problems.dtypes import Dtype
from tuner.problems.options import BATCH_SIZE, BatchSizes, Option
from tuner.problems.points import ChartPosition, Point
from tuner.problems.registry import Family


def place(problem: Scale, point: Point) -> ChartPosition:
    return ChartPosition("scale", point.batch_size, "rows")


def least_us(problem: Scale, point: Point, device: Device) -> float:
    numbers = point.batch_size * problem.columns
    return roofline_us(
        device, Dtype.FLOAT16, operations=numbers, cold_bytes=4.0 * numbers, warm_bytes=0.0
    )


def held_bytes(problem: Scale, point: Point) -> int:
    return 4 * point.batch_size * problem.columns


FAMILY = Family(
    name="toy",
    title="a toy",
    problems=(Scale.family,),
    example="toy_scale:columns=..",
    parse=parse_scale,
    parts=Kernel,
    shaping=(),
    selecting=(
        Option(
            "rows", "--rows", BatchSizes(BATCH_SIZE), "e.g. 1,16", "Rows; default: 1, 16 and 256."
        ),
    ),
    searching=(),
    read_selection=read_rows,
    fields_of=lambda points: {"rows": [point.batch_size for point in points]},
    place=place,
    least_us=least_us,
    held_bytes=held_bytes,
    package="toy_family",
)

from __future__ import annotations

from toy_family.problem import Scale
from tuner.devices.roofline import roofline_us
from tuner.devices.table import Device
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Point


def least_us(problem: Scale, point: Point, device: Device) -> float:
    numbers = point.batch_size * problem.columns
    return roofline_us(
        device, Dtype.FLOAT16, operations=numbers, cold_bytes=4.0 * numbers, warm_bytes=0.0
    )


def held_bytes(problem: Scale, point: Point) -> int:
    return 4 * point.batch_size * problem.columns

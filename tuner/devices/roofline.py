"""Compute the roofline: the least time of a launch on a device, with any configuration."""

from __future__ import annotations

from tuner.devices.table import Device
from tuner.problems.dtypes import Dtype


def roofline_us(
    device: Device, dtype: Dtype, *, operations: float, cold_bytes: float, warm_bytes: float
) -> float:
    """Return the larger of the memory's time and the tensor cores' time, in microseconds.

    `operations`: multiplications and additions, each counted. `cold_bytes`: bytes in device memory
    alone: weights, caches. `warm_bytes`: bytes that the launch before wrote or the next launch
    reads: they may stay in the L2 cache, so only the bytes beyond the cache's size must move. Rates
    are the peaks of the device table; if the tensor cores lack fp8, kernels multiply it as fp16.
    """
    moved = cold_bytes + max(0.0, warm_bytes - device.l2_bytes)
    peak = device.peak_tflops(dtype) or device.fp16_tflops
    return max(moved / device.bandwidth_gbs / 1e3, operations / peak / 1e6)

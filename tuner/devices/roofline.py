"""The roofline: the least time that a launch can take on a device, whatever its configuration."""

from __future__ import annotations

from tuner.devices.table import Device
from tuner.problems.dtypes import Dtype


def roofline_us(
    device: Device, dtype: Dtype, *, operations: float, cold_bytes: float, warm_bytes: float
) -> float:
    """The larger of the time that memory takes and the time that tensor cores take, microseconds.

    `operations`: multiplications and additions, each counted. `cold_bytes`: what device memory
    alone has: weights, caches. `warm_bytes`: what the launch before wrote or the next one reads:
    it may stay in the L2 cache, so only what exceeds the cache must move. Rates are the peaks of
    the device table; where the tensor cores lack fp8, kernels multiply it as fp16.
    """
    moved = cold_bytes + max(0.0, warm_bytes - device.l2_bytes)
    peak = device.peak_tflops(dtype) or device.fp16_tflops
    return max(moved / device.bandwidth_gbs / 1e3, operations / peak / 1e6)

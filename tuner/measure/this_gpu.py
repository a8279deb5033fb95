"""Describe this process's GPU, which is NVIDIA's. This module imports torch and triton."""

from __future__ import annotations

import re
from pathlib import Path

import torch
import triton

from tuner.devices.target import Target
from tuner.measure.gpu_lock import lock_gpu


def local_target() -> Target:
    """Return the target that Triton compiles for here."""
    found = triton.runtime.driver.active.get_current_target()
    return Target(found.backend, found.arch, found.warp_size)


def local_name() -> str:
    """Return the GPU's name as the table of devices and engines' files have it."""
    name: str = torch.cuda.get_device_name(0)
    return name.replace(" ", "_")


def lock_this_gpu() -> int:
    """Take the GPU until this process ends. Raise GpuInUse and OSError, as `lock_gpu` does."""
    return lock_gpu(f"GPU-{torch.cuda.get_device_properties(0).uuid}")


def last_cache_bytes() -> int:
    """Return the size of the last cache before memory."""
    reported: int = torch.cuda.get_device_properties(0).L2_cache_size
    return reported


def driver_version() -> str:
    """Return the driver version that the kernel module reports; "" if no file shows it."""
    found = re.search(
        r"Kernel Module.*?\s(\d+\.[\d.]+)\s", _text(Path("/proc/driver/nvidia/version"))
    )
    return found[1] if found else ""


def runtime_version() -> str:
    """Return the version of CUDA."""
    return torch.version.cuda or ""


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

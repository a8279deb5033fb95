"""What each GPU is: the engine's spelling of its name, its limits, and its peak rates.

The figures and their sources are in devices.toml, which is parsed once, on first use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from tuner.errors import UnknownDevice, did_you_mean
from tuner.problems.dtypes import Dtype
from tuner.toml_table import shipped_toml

OLDEST_ARCH = 80  # Triton supports compute capability 8.0 and later


@dataclass(frozen=True)
class Device:
    """One kind of GPU.

    Peaks are the vendor's dense rates, without structured sparsity, at boost clock. Those of fp16
    (the same for bf16) and fp8 accumulate in fp32, as the kernels do; GeForce cards have half of
    their advertised rate there.
    """

    name: str  # torch.cuda.get_device_name() with underscores: the engine's spelling in file names
    aliases: tuple[str, ...]
    arch: int  # 89 for sm_89
    sm_count: int
    memory_bytes: int  # nominal
    l2_bytes: int
    bandwidth_gbs: float  # device memory, 1e9 bytes a second
    fp16_tflops: float
    fp8_tflops: float | None  # None: the tensor cores have no fp8
    int8_tops: float
    shared_optin_bytes: int  # largest shared memory of one block, opted in to
    shared_per_sm_bytes: int
    registers_per_sm: int  # 32 bits each
    max_threads_per_sm: int
    max_warps_per_sm: int
    max_blocks_per_sm: int
    source: str  # of this card's own figures
    arch_source: str  # of the limits that its whole architecture shares

    def peak_tflops(self, dtype: Dtype) -> float | None:
        """Dense TFLOP/s (TOP/s) of the tensor cores for that layer; None where they lack it."""
        if dtype is Dtype.FP8_W8A8:
            return self.fp8_tflops
        return self.int8_tops if dtype is Dtype.INT8_W8A8 else self.fp16_tflops


def devices() -> tuple[Device, ...]:
    """Every GPU of the table, in its order."""
    return _table()[0]


def find_device(text: str) -> Device:
    """The GPU of that name or alias.

    Case, spaces, underscores, hyphens and a leading NVIDIA do not matter. Raises UnknownDevice,
    which names the nearest GPU, or says why an older one cannot be tuned for.
    """
    if device := _by_key().get(_key(text)):
        return device
    known, too_old = _table()
    for spelling, arch in too_old.items():
        if _key(spelling) == _key(text):
            raise UnknownDevice(
                f"{text} (sm_{arch}) is too old: Triton's kernels need sm_{OLDEST_ARCH} or later, "
                "the oldest of which are the A100 and the A30"
            )
    spellings = [spelling for d in known for spelling in (*d.aliases, d.name)]
    near = did_you_mean(text, spellings)
    raise UnknownDevice(
        f"unknown device {text!r}{near or '; `tuner devices` lists the known ones'}"
    )


def _key(text: str) -> str:
    return re.sub(r"[\s_-]+", "", text).casefold().removeprefix("nvidia")


@cache
def _by_key() -> dict[str, Device]:
    return {_key(text): device for device in devices() for text in (device.name, *device.aliases)}


@cache
def _table() -> tuple[tuple[Device, ...], dict[str, int]]:
    table = shipped_toml("tuner.devices", "devices.toml")
    known = tuple(_device(row, table["arch"][str(row["arch"])]) for row in table["device"])
    return known, table["too_old"]


def _device(row: dict[str, Any], limits: dict[str, Any]) -> Device:
    return Device(
        name=row["name"],
        aliases=tuple(row["aliases"]),
        arch=row["arch"],
        sm_count=row["sm_count"],
        memory_bytes=row["memory_gib"] << 30,
        l2_bytes=row["l2_mib"] << 20,
        bandwidth_gbs=float(row["bandwidth_gbs"]),
        fp16_tflops=float(row["fp16_tflops"]),
        fp8_tflops=float(row["fp8_tflops"]) if "fp8_tflops" in row else None,
        int8_tops=float(row["int8_tops"]),
        source=row["source"],
        arch_source=limits["source"],
        **{name: value for name, value in limits.items() if name != "source"},
    )

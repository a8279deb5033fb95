"""A GPU's place taken by the CPU: sessions that measure do all that they do, but launch nothing.

Each launch is compared with the variant that its kernel is compiled for. Outputs are not written,
so a comparison with a reference only tells whether both have one shape, and no NaN is expected.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from torch.overrides import TorchFunctionMode

from tuner.devices.table import Device
from tuner.devices.target import Target
from tuner.families.fused_moe import layer
from tuner.kernels.binding import Variant
from tuner.measure import timing

FREE_BYTES = 8 << 30
L2_BYTES = 4 << 20  # of a small card, so that both ways of reading cold weights are taken
TYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8e4nv": torch.float8_e4m3fn,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i32": torch.int32,
    "i64": torch.int64,
}
BITS = {"i32": 32, "i64": 64}


@dataclass(frozen=True)
class StandIn:
    """A kernel as compiled."""

    variant: Variant
    metadata: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(shared=0))


@dataclass
class Seen:
    """What sessions did."""

    kernels: set[Variant] = field(default_factory=set)
    launches: int = 0


def launch(
    seen: Seen, kernel: StandIn, grid: tuple[int, int, int], values: Sequence[Any], stream: Any
) -> None:
    """Compare a launch with what its kernel was compiled for."""
    variant = kernel.variant
    seen.launches += 1
    assert all(isinstance(blocks, int) and blocks > 0 for blocks in grid), grid
    for (name, kind), value in zip(variant.signature.items(), values, strict=True):
        assert _fits(variant, name, kind, value), f"{variant.function}: {name} of {kind}: {value}"


def _fits(variant: Variant, name: str, kind: str, value: Any) -> bool:
    """Whether a value is of the type for which a parameter was compiled."""
    divisible = name in variant.divisible
    if kind == "constexpr":
        constant = variant.constants[name]
        return (
            (constant["dtype"] == value.name) if isinstance(constant, dict) else constant == value
        )
    if kind.startswith("*"):
        starts = value.data_ptr() % 16 == 0 or not divisible
        return value.dtype is TYPES[kind[1:]] and starts
    if described := re.fullmatch(r"tensordesc<(\w+)\[(.+)\]>", kind):
        block = [int(n) for n in described[2].split(",")]
        return value.base.dtype is TYPES[described[1]] and list(value.block_shape) == block
    if kind == "fp32":
        return isinstance(value, float)
    limit = 1 << BITS[kind] - 1
    whole = isinstance(value, int) and -limit <= value < limit
    return whole and (value % 16 == 0 or not divisible)


def compared(reference: timing.Reference, output: torch.Tensor) -> float:
    """In place of an error: 0, if an output could be compared."""
    expected = reference._expected
    assert output.shape == expected.shape
    assert expected.isfinite().all()
    return 0.0


class _OnCpu(TorchFunctionMode):
    """Makes tensors on the CPU that are asked for on a GPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        given = dict(kwargs or {})
        if given.get("device") == "cuda":
            given["device"] = "cpu"
        return function(*args, **given)


class _Graph:
    def capture_begin(self) -> None: ...
    def capture_end(self) -> None: ...
    def replay(self) -> None: ...


class _Event:
    def __init__(self, enable_timing: bool) -> None: ...
    def record(self) -> None: ...
    def synchronize(self) -> None: ...

    def elapsed_time(self, end: _Event) -> float:
        return 0.01


def take_the_place_of(device: Device, patch: pytest.MonkeyPatch) -> Seen:
    """Let sessions of this process measure on what they take for the device."""
    seen = Seen()

    def compiled(source: object, variant: Variant, target: Target) -> StandIn:
        assert target == device.target
        seen.kernels.add(variant)
        return StandIn(variant)

    patch.setattr(timing, "_compiled", compiled)
    patch.setattr(timing, "launch", lambda *launched: launch(seen, *launched))
    patch.setattr(timing.Reference, "worst_error", compared)
    patch.setattr(layer, "COPIED_BYTES", 1 << 20)
    _patch_torch(device, patch)
    target = device.target
    utils = SimpleNamespace(
        get_device_properties=lambda at: {"max_shared_mem": device.shared_optin_bytes}
    )
    gpu = SimpleNamespace(backend=target.platform, arch=target.arch, warp_size=target.warp_size)
    driver = SimpleNamespace(utils=utils, get_current_target=lambda: gpu)
    patch.setattr(triton.runtime.driver, "_active", driver)
    return seen


def _patch_torch(device: Device, patch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(
        L2_cache_size=L2_BYTES, total_memory=FREE_BYTES, multi_processor_count=device.sm_count
    )
    generator = torch.Generator
    patch.setattr(torch, "Generator", lambda device: generator("cpu"))
    cuda = {
        "get_device_properties": lambda at: properties,
        "mem_get_info": lambda: (FREE_BYTES, FREE_BYTES),
        "CUDAGraph": _Graph,
        "Event": _Event,
        "Stream": lambda: SimpleNamespace(cuda_stream=0),
        "stream": lambda stream: contextlib.nullcontext(),
        "synchronize": lambda: None,
        "_sleep": lambda cycles: None,
    }
    for name, found in cuda.items():
        patch.setattr(torch.cuda, name, found)


@contextlib.contextmanager
def in_place_of(device: Device):
    """What `take_the_place_of` gives, as long as the block lasts."""
    with pytest.MonkeyPatch.context() as patch, _OnCpu():
        yield take_the_place_of(device, patch)
        timing._filler.cache_clear()

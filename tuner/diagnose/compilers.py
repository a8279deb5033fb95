"""Answer messages of compilers and of compiled GEMMs: which kernel it is, and which sizes fail."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from tuner.devices.table import Device
from tuner.diagnose.added import Added
from tuner.diagnose.context import Context
from tuner.diagnose.findings import LogFinding
from tuner.diagnose.shared_memory import launch_of
from tuner.engines.engine import engine_package
from tuner.errors import BadInput
from tuner.jobs.targets import resolve_target
from tuner.models.serving import Serving
from tuner.problems.dtypes import Dtype
from tuner.problems.registry import find_family

_CACHE = re.compile(r"cache|attention|_fwd_kernel|_fwd_grouped")  # kernels that read or write it
# The reason of a compile error, at the end of a source that Triton quotes.
_REASON = re.compile(r"\b\w*(?:Error|Exception)\w*[(:][^\n]{3,300}|Input shapes should have [^\n]+")


def compile_error(finding: LogFinding, context: Context) -> Added:
    """Say the kernel and the reason, which stand below the message, and the kernel's place."""
    kernel = re.search(r"\bdef (\w+)\(", finding.around)
    reason = _REASON.search(finding.around.partition("CompilationError")[2])
    return Added(
        (
            *([f"The kernel is {kernel[1]}."] if kernel else []),
            *([f"The reason: {reason[0]}"] if reason else []),
            *surfaced(finding, context).cause,
        )
    )


def surfaced(finding: LogFinding, context: Context) -> Added:
    """Say the place of the engine's code at which an error came up."""
    frame = launch_of(finding.frames)
    if frame is None:
        return Added()
    return Added((f"It came up at {frame.path}, line {frame.line}, in {frame.function}.",))


def fp8_kernel(finding: LogFinding, context: Context) -> Added:
    """Which kernel has the type, and so whether weights or the KV cache do."""
    if not (named := re.search(r"\bdef (\w+)\(", finding.around)):
        return Added()
    whose = "the KV cache is fp8" if _CACHE.search(named[1]) else "the weights are fp8"
    return Added((f"The kernel is {named[1]}: {whose}.",))


def cutlass_tile(finding: LogFinding, context: Context) -> Added:
    """Which sizes do not fit, where GPU and shapes are known."""
    if any("fp8" in frame.function for frame in finding.frames):
        return Added((), ("sglang: Use a newer release, whose sgl-kernel has other tiles.",))
    before = (
        "If it is int8_scaled_mm: releases before 0.4.4.post2 launch the tiles of sm_80 on sm_89 "
        "(L40S, RTX 4090). One needs 122,880 bytes of shared memory, and a block there has "
        "101,376. It is chosen for 33 to 128 rows, so some batches fail and others do not.",
    )
    step = "sglang: Upgrade to 0.4.4.post2 or later (on sm_86: 0.4.5), whose tiles fit."
    device = context.device()
    if device is None:
        return Added(before, (step,))
    sizes, notes = _int8_sizes(context, device)
    return Added((*before, *notes), (step,), {"device": device.name, "fails_at": sizes})


def scaled_mm_unserved(finding: LogFinding, context: Context) -> Added:
    """Which cards have the kernel, and what to serve instead."""
    gemm = finding.values.get("gemm", "")
    if gemm != "int8_scaled_mm":
        return Added(
            (),
            (
                "sglang: Use a newer release: kernels for new GPUs come with sgl-kernel.",
                "sglang: Until then start it with --fp8-gemm-backend triton (0.5.12 and later).",
            ),
            {"gemm": gemm},
        )
    return Added(
        (
            "sgl-kernel has int8_scaled_mm for sm_80 to sm_90 (A100, A10, L40S, RTX 4090, H100, "
            "H20). Blackwell (sm_100, sm_103, sm_120, sm_121) has none in releases up to 0.5.23.",
        ),
        (
            "Serve an FP8 or FP4 version of the checkpoint on this GPU, or the INT8 one on an "
            "older GPU.",
        ),
        {"gemm": gemm},
    )


def _int8_sizes(context: Context, device: Device) -> tuple[list[str], list[str]]:
    """What the table of compiled kernels says of the device, and of the model's shapes there."""
    version = context.version("sglang") or "0.4.4"
    module = import_module(f"{engine_package('sglang')}.compiled_kernels")
    kernel = module.compiled_kernel("int8_scaled_mm")
    tiles = kernel.tiles(version, device)
    if not tiles:
        return [], [f"On {device.name}, sglang {version} has no int8_scaled_mm at all."]
    if all(tile.fits(device) for tile in tiles):
        return [], [
            f"On {device.name} all tiles of sglang {version} fit, so the cause is another one, or "
            "the server is of another release: name it with --engine sglang==VERSION."
        ]
    found = [
        f"N={problem.N}, K={problem.K}: batch sizes {first} to {last}"
        for problem in _dense_problems(context, version)
        for first, last, _ in kernel.sizes_too_large(version, device, problem.N)
    ]
    note = f"These GEMMs of {context.model} at tp={context.tp} fail: {'; '.join(found)}."
    return found, [note] if found else []


def _dense_problems(context: Context, version: str) -> list[Any]:
    """The int8 GEMMs of one rank of the model, where the model and tp are known."""
    if not context.target() or not context.tp:
        return []
    serving = Serving(engine_version=version, tp=context.tp, dtype=Dtype.INT8_W8A8)
    try:
        return list(
            resolve_target(context.target(), serving, family=find_family("channel_gemm:")).problems
        )
    except BadInput:
        return []

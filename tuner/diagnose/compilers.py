"""Answer messages of compilers and of compiled GEMMs: which kernel it is, and which sizes fail."""

from __future__ import annotations

import re
from importlib import import_module

from tuner.devices.table import Device
from tuner.diagnose.computed_answer import ComputedAnswer
from tuner.diagnose.context import Context
from tuner.diagnose.findings import LogFinding
from tuner.diagnose.shared_memory import launch_of
from tuner.engines.engine import engine_package
from tuner.errors import BadInput
from tuner.models.serving import Serving
from tuner.problems.dtypes import Dtype
from tuner.problems.registry import find_family
from tuner.targets import resolve_target

# The reason of a compile error, at the end of a source that Triton quotes.
_REASON = re.compile(r"\b\w*(?:Error|Exception)\w*[(:][^\n]{3,300}|Input shapes should have [^\n]+")


def compiler(finding: LogFinding, context: Context) -> ComputedAnswer:
    """Name the kernel, the reason, which stands below the message, and the place of the launch."""
    kernel = re.search(r"\bdef (\w+)\(", finding.around)
    reason = _REASON.search(finding.around.partition("CompilationError")[2])
    frame = launch_of(finding.frames)
    place = f"{frame.path}, line {frame.line}, in {frame.function}" if frame else ""
    said = {"The kernel is": kernel and kernel[1], "It came up at": place}
    causes = [f"{words} {one}." for words, one in said.items() if one]
    return ComputedAnswer((*causes, *([f"The reason: {reason[0]}"] if reason else [])))


def cutlass_tile(finding: LogFinding, context: Context) -> ComputedAnswer:
    """Say which sizes do not fit, if GPU and shapes are known."""
    if any("fp8" in frame.function for frame in finding.frames):
        return ComputedAnswer(
            (), ("sglang: Use a newer release, whose sgl-kernel has other tiles.",)
        )
    before = (
        "If it is int8_scaled_mm: releases before 0.4.4.post2 launch the tiles of sm_80 on sm_89 "
        "(L40S, RTX 4090). One needs 122,880 bytes of shared memory, and a block there has "
        "101,376. It is chosen for 33 to 128 rows, so some batches fail and others do not.",
    )
    step = "sglang: Upgrade to 0.4.4.post2 or later (on sm_86: 0.4.5), whose tiles fit."
    device = context.device()
    if device is None:
        return ComputedAnswer(before, (step,))
    fails = _int8_refusals(context, device)
    return ComputedAnswer((*before, *fails), (step,), {"device": device.name, "fails": fails})


def _int8_refusals(context: Context, device: Device) -> list[str]:
    """Say which int8 GEMMs of the model's rank have too large a tile on the device."""
    if not context.target() or not context.tp:
        return []
    version = context.version("sglang") or "0.4.4"
    serving = Serving(engine_version=version, tp=context.tp, dtype=Dtype.INT8_W8A8)
    try:
        found = resolve_target(
            context.target(), serving, family=find_family("channel_gemm:")
        ).problems
    except BadInput:
        return []
    refusals = import_module(f"{engine_package('sglang')}.compiled_kernels").refusals
    return [
        f"{problem.spec()}: {why}."
        for problem in found
        for why in refusals("int8_scaled_mm", version, problem, device)
    ]

"""Kernels that a GPU could not run: whose they are, and what runs instead."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tuner.devices.table import Device
from tuner.diagnose.added import Added, Mend, card_name
from tuner.diagnose.context import Context, devices_with
from tuner.diagnose.findings import Finding, Frame
from tuner.engines.engine import engine_names, engine_package, supports
from tuner.errors import BadInput
from tuner.families.attention.engine import attention_engine
from tuner.jobs.targets import resolve_target
from tuner.models.serving import Serving
from tuner.problems.dtypes import Dtype
from tuner.problems.registry import find_family

# Files of kernels that read config files.
_WITH_FILES = ("fused_moe", "fp8_kernel", "int8_kernel", "fp8_utils", "int8_utils")
_DIGITS = 18  # of a number; a log may be made up


def shared_memory(finding: Finding, context: Context) -> Added:
    """Whose kernel it was, what it needs by release and Triton, and what helps."""
    required, limit = (_bytes(finding.values[name]) for name in ("required", "limit"))
    known = context.device()
    cards = [known] if known else devices_with(limit)
    frame = _launch(finding)
    details: dict[str, Any] = {"required_bytes": required, "limit_bytes": limit}
    if frame:
        details["kernel"] = {"file": frame.path, "line": frame.line, "function": frame.function}
    for name in engine_names():
        if not supports(name, "attention") or context.engine_name(finding) not in ("", name):
            continue
        module = import_module(f"{engine_package(name)}.attention.crash")
        place = (frame.path, frame.line) if frame else None
        if answer := module.explain(required, limit, place, context.version, cards):
            details |= answer.details
            return Added(answer.cause, answer.fix, details, _mend(answer, name, context))
    return _elsewhere(frame, card_name(cards[0] if len(cards) == 1 else None), details)


def cutlass_tile(finding: Finding, context: Context) -> Added:
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


def scaled_mm_unserved(finding: Finding, context: Context) -> Added:
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


def _launch(finding: Finding) -> Frame | None:
    """The innermost frame that is the engine's: where the kernel was launched."""
    ours = (f for f in reversed(finding.frames) if not _of_triton(f.path))
    return next(ours, None)


def _of_triton(path: str) -> bool:
    path = path.replace("\\", "/")
    return any(f"/{name}/" in path for name in ("triton/runtime", "triton/compiler", "torch"))


def _elsewhere(frame: Frame | None, card: str, details: dict[str, Any]) -> Added:
    """The answer for kernels that are not attention's."""
    if frame is None:
        steps = (
            "Give the whole traceback to `tuner diagnose`: the file above triton's own lines names "
            "the kernel.",
            "If the server reads a tuned config file, check whether its entries fit this GPU:",
            f"$ tuner check FILE --device {card}",
        )
        return Added(("The line does not name the kernel.",), steps, details)
    function = f", in {frame.function}" if frame.function else ""
    where = f"The kernel was launched at {frame.path}, line {frame.line}{function}."
    if not any(name in frame.path for name in _WITH_FILES):
        step = "Use a newer release of the engine, or another backend: its constants stand there."
        return Added((where,), (step,), details)
    why = (
        "Its constants come from a config file or from the engine's defaults, and do not fit here."
    )
    tuned = (
        "Check every entry of the file that the server loaded (its log names it):",
        f"$ tuner check FILE --device {card}",
        "Make a file that fits:",
        f"$ tuner tune MODEL --tp N --device {card}",
    )
    return Added((where, why), tuned, details)


def _mend(answer: Any, name: str, context: Context) -> Mend | None:  # noqa: ANN401  # of an engine
    """The patch for the file of the traceback, else for the engine of the command line."""
    device = context.device()
    if device is None:
        return None
    if answer.engine and answer.remedy:
        return Mend(answer.engine, device, answer.remedy)
    engine = context.engine(name) if context.hints.engine else None
    remedy = attention_engine(engine).remedy(device) if engine else None
    return Mend(engine, device, remedy) if engine and remedy else None


def _int8_sizes(context: Context, device: Device) -> tuple[list[str], list[str]]:
    """What the table of compiled kernels says of the device, and of the model's shapes there."""
    version = context.version or "0.4.4"
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
    if not context.model or not context.tp:
        return []
    serving = Serving(engine_version=version, tp=context.tp, dtype=Dtype.INT8_W8A8)
    name = context.model.rpartition("/")[2]
    try:
        return list(resolve_target(name, serving, family=find_family("channel_gemm:")).problems)
    except BadInput:
        return []


def _bytes(text: str) -> int:
    return int(text.replace(",", "")[:_DIGITS])

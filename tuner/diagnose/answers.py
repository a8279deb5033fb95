"""Answers that must be computed: which command makes the missing file, which size fits.

Each function takes a finding and the context, and gives what it adds to the table's answer.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from tuner.devices.table import Device
from tuner.diagnose.context import Context, devices_with
from tuner.diagnose.findings import Finding
from tuner.engines.engine import Engine, engine_names, engine_package, supports
from tuner.errors import BadInput
from tuner.families.attention.engine import Remedy, attention_engine
from tuner.jobs.targets import reader_of, resolve_target
from tuner.models.serving import Resolved, Serving
from tuner.problems.dtypes import Dtype
from tuner.problems.registry import find_family


@dataclass(frozen=True)
class Mend:
    """A patch for a file on this machine."""

    engine: Engine
    device: Device
    remedy: Remedy


@dataclass(frozen=True)
class Added:
    """What a computation adds: sentences, and steps in the form of the table's."""

    cause: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)  # for --json
    mends: Mend | None = None


NOTHING = Added()


def missing_file(finding: Finding, context: Context) -> Added:
    """The command that tunes what a missing file is for."""
    path = finding.values.get("path", "")
    name = path.replace("\\", "/").rpartition("/")[2].rstrip("']")
    details: dict[str, Any] = {"file": name}
    family = reader_of(path)
    engine = context.engine_name(finding) or "sglang"
    if family is None:
        return Added(details=details)
    if engine not in engine_names() or not supports(engine, family.name):
        return Added((f"The missing file is {name}.",), details=details)
    spec = f"{engine}=={context.version}" if context.version else engine
    serving = Serving(engine=engine, engine_version=context.version or None)
    try:
        resolved: Resolved = family.module("models").resolve(path, serving)
    except BadInput as error:
        return Added(
            (f"The missing file is {name}.",),
            (
                f"The line does not say enough to tune it: {error.message}.",
                f"$ tuner tune {shlex.quote(name)} --hidden-size SIZE --top-k NUMBER --device GPU",
            ),
            details,
        )
    device = context.device(resolved.device_name or "")
    card = device.aliases[0] if device and device.aliases else (device.name if device else "GPU")
    at = f" --engine {spec}" if context.version else ""
    target = shlex.quote(resolved.problems[0].spec())
    details |= {"problem": resolved.problems[0].spec(), "device": device.name if device else None}
    cause = [
        f"The missing file is {name}.",
        *(f"{note[:1].upper()}{note[1:]}." for note in resolved.notes),
    ]
    fix = [
        f"$ tuner tune {target} --device {card}{at}",
        f"$ tuner export --device {card}{at}",
        "The second command prints the variable or the folder with which the server finds the file.",
    ]
    if resolved.device_name and device is None:
        fix.insert(
            0,
            f"This tuner has no figures for {resolved.device_name}: see `tuner devices`, and "
            "docs/operations.md for adding one.",
        )
    if resolved.older_than and not context.version:
        fix.insert(
            0,
            f"The path is of a release before {engine} {resolved.older_than}: add --engine "
            f"{engine}==VERSION of the server to both commands, because newer releases look "
            "for another name.",
        )
    return Added(tuple(cause), tuple(fix), details)


def shared_memory(finding: Finding, context: Context) -> Added:
    """Whose kernel it was, what it needs by release and Triton, and what helps."""
    required, limit = (int(finding.values[n].replace(",", "")) for n in ("required", "limit"))
    cards = [context.device()] if context.device() else devices_with(limit)
    details: dict[str, Any] = {"required_bytes": required, "limit_bytes": limit}
    frame = next(
        (
            f
            for f in reversed(finding.frames)
            if "/triton/" not in f.path and "/torch/" not in f.path
        ),
        None,
    )
    if frame:
        details["kernel"] = {"file": frame.path, "line": frame.line, "function": frame.function}
    for name in engine_names():
        if supports(name, "attention"):
            module = import_module(f"{engine_package(name)}.attention.crash")
            answer = module.explain(
                required, limit, frame and (frame.path, frame.line), context.version, cards
            )
            if answer:
                mends = _mend(answer, name, context)
                return Added(answer.cause, answer.fix, {**details, **answer.details}, mends)
    if frame is None:
        return Added(
            ("The line does not name the kernel.",),
            (
                "Give the whole traceback to `tuner diagnose`: the file above triton's own lines names "
                "the kernel.",
                "If the server reads a tuned config file, check whether its entries fit this GPU:",
                "$ tuner check FILE --device GPU",
            ),
            details,
        )
    where = f"{frame.path}, line {frame.line}" + (
        f", in {frame.function}" if frame.function else ""
    )
    if "fused_moe" in frame.path or "fp8_kernel" in frame.path or "int8_kernel" in frame.path:
        card = cards[0].aliases[0] if len(cards) == 1 and cards[0] and cards[0].aliases else "GPU"
        return Added(
            (
                f"The kernel was launched at {where}. Its constants come from a config file, or from the "
                "engine's defaults. A file that was tuned on a larger GPU does not fit.",
            ),
            (
                "Check every entry of the file that the server loaded (its log names it):",
                f"$ tuner check FILE --device {card}",
                "Make one that fits: give the same log to `tuner tune`, or name the model:",
                f"$ tuner tune MODEL --tp N --device {card}",
            ),
            details,
        )
    return Added(
        (f"The kernel was launched at {where}.",),
        (
            "Use a newer release of the engine, or another backend for this operation: the constants "
            "stand in that file.",
        ),
        details,
    )


def _mend(answer: Any, name: str, context: Context) -> Mend | None:  # noqa: ANN401
    """The patch for the file of the traceback, else for the engine of the command line."""
    device = context.device()
    if device is None:
        return None
    if answer.engine and answer.remedy:
        return Mend(answer.engine, device, answer.remedy)
    engine = context.engine(name) if context.hints.engine else None
    remedy = attention_engine(engine).remedy(device) if engine else None
    return Mend(engine, device, remedy) if engine and remedy else None


def cutlass_tile(finding: Finding, context: Context) -> Added:
    """Which sizes do not fit, where GPU and shapes are known."""
    of_fp8 = any("fp8" in frame.function for frame in finding.frames)
    device = context.device()
    if of_fp8:
        return Added((), ("sglang: Use a newer release, whose sgl-kernel has other tiles.",))
    cause = [
        "In releases before 0.4.4.post2, int8_scaled_mm launches the tiles of sm_80 on sm_89 (L40S, "
        "RTX 4090): one of them needs 122,880 bytes of shared memory, and a block there has 101,376. "
        "It is chosen for 33 to 128 rows, so the server fails at some batches and not at others."
    ]
    fix = ["sglang: Upgrade to 0.4.4.post2 or later (sm_86: 0.4.5), whose tiles fit."]
    details: dict[str, Any] = {}
    if device:
        sizes, notes = _int8_sizes(context, device)
        details = {"device": device.name, "fails_at": sizes}
        cause += notes
    return Added(tuple(cause), tuple(fix), details)


def scaled_mm_unserved(finding: Finding, context: Context) -> Added:
    """Which cards have the kernel, and what to serve instead."""
    gemm = finding.values.get("gemm", "")
    if gemm == "int8_scaled_mm":
        return Added(
            (
                "sgl-kernel has int8_scaled_mm for sm_80 to sm_90 (A100, A10, L40S, RTX 4090, H100, H20). "
                "Blackwell (sm_100, sm_103, sm_120, sm_121) has none, in releases up to 0.5.23.",
            ),
            (
                "Serve an FP8 or FP4 version of the checkpoint on this GPU, or the INT8 one on an older GPU.",
            ),
            {"gemm": gemm},
        )
    return Added(
        (),
        (
            "sglang: Use a newer release: kernels for new GPUs come with sgl-kernel.",
            "sglang: Until then start it with --fp8-gemm-backend triton (0.5.12 and later).",
        ),
        {"gemm": gemm},
    )


def block_shape(finding: Finding, context: Context) -> Added:
    """The nearest tensor-parallel size whose shares are whole blocks."""
    size, block = (int(finding.values[n].replace(",", "")) for n in ("size", "block"))
    tp = context.tp
    if not tp:
        return Added(
            (),
            (
                f"Use a smaller --tp, so that each rank holds a multiple of {block}; or expert "
                "parallelism, which divides experts instead of weights; or a checkpoint with a scale "
                "for each channel instead of blocks.",
            ),
        )
    whole = size * tp
    fits = [n for n in range(1, tp) if whole % n == 0 and whole // n % block == 0 and tp % n == 0]
    if not fits:
        return Added(
            (f"The whole weight has {whole}, so no smaller size divides it into whole blocks.",),
            ("Use expert parallelism, or a checkpoint with a scale for each channel.",),
        )
    return Added(
        (f"The whole weight has {whole}; {fits[-1]} ranks hold {whole // fits[-1]} each.",),
        (
            f"Use --tp {fits[-1]}, with pipeline or data parallelism for the other GPUs; or expert "
            "parallelism; or a checkpoint with a scale for each channel instead of blocks.",
        ),
        {"tp": fits[-1]},
    )


def heads(finding: Finding, context: Context) -> Added:
    """The sizes that divide the heads."""
    count, tp = (int(finding.values[n].replace(",", "")) for n in ("heads", "tp"))
    fits = [n for n in range(1, count + 1) if count % n == 0]
    near = max((n for n in fits if n <= tp), default=1)
    listed = ", ".join(str(n) for n in fits if n <= 64)
    return Added(
        (f"{listed} divide {count}.",),
        (
            f"Use --tensor-parallel-size {near}. More GPUs can serve by --pipeline-parallel-size, which "
            "divides layers.",
        ),
        {"tp": near},
    )


def memory_taken(finding: Finding, context: Context) -> Added:
    """The share of the GPU's memory that is free."""
    free, total = (float(finding.values[n]) for n in ("free", "total"))
    share = int(100 * free / total) / 100 if total else 0.0
    steps = ["$ nvidia-smi"]
    if share >= 0.1:
        steps += [
            "If the other process is to stay, take what is free:",
            f"$ --gpu-memory-utilization {share:.2f}",
        ]
    return Added((), tuple(steps), {"gpu_memory_utilization": share})


ANSWERS: Mapping[str, Callable[[Finding, Context], Added]] = {
    function.__name__: function
    for function in (
        *(missing_file, shared_memory, cutlass_tile, scaled_mm_unserved),
        *(block_shape, heads, memory_taken),
    )
}


def _int8_sizes(context: Context, device: Device) -> tuple[list[str], list[str]]:
    """What the table of compiled kernels says of the model's shapes on the device."""
    version = context.version or "0.4.4"
    module = import_module(f"{engine_package('sglang')}.compiled_kernels")
    kernel = module.compiled_kernel("int8_scaled_mm")
    tiles = kernel.tiles(version, device)
    if not tiles:
        return [], [f"On {device.name} sglang {version} has no int8_scaled_mm at all."]
    if all(tile.fits(device) for tile in tiles):
        return [], [
            f"All tiles of sglang {version} fit {device.name}, so the cause is another one: give "
            "--engine sglang==VERSION of the server."
        ]
    found = []
    for problem in _dense_problems(context, version):
        sizes = kernel.sizes_too_large(version, device, problem.N)
        found += [f"N={problem.N}, K={problem.K}: batch sizes {a} to {b}" for a, b, _ in sizes]
    if not found:
        return [], []
    return found, [f"Of {context.model} at tp={context.tp} these fail: {'; '.join(found)}."]


def _dense_problems(context: Context, version: str) -> list[Any]:
    """The int8 GEMMs of one rank of the model, where model and size are known."""
    if not context.model or not context.tp:
        return []
    family = find_family("channel_gemm:")
    serving = Serving(engine_version=version, tp=context.tp, dtype=Dtype.INT8_W8A8)
    name = context.model.rpartition("/")[2]
    try:
        return list(resolve_target(name, serving, family=family).problems)
    except BadInput:
        return []

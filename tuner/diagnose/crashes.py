"""Kernels that a GPU could not run: whose they are, and what runs instead."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from tuner.devices.table import Device
from tuner.diagnose.added import Added, Mend
from tuner.diagnose.context import Context, devices_with
from tuner.diagnose.files import why_not
from tuner.diagnose.findings import Frame, LogFinding
from tuner.diagnose.launches import Needs, in_words, that_need
from tuner.diagnose.tracebacks import chosen, package_of
from tuner.engines.engine import engine_module, engine_names, engine_package, supports
from tuner.engines.logs.served import ENGINES
from tuner.errors import BadInput
from tuner.families.attention.engine import attention_engine
from tuner.files import shipped_toml
from tuner.models.serving import Serving
from tuner.problems.dtypes import Dtype
from tuner.problems.registry import Family, families, family_of, find_family
from tuner.shell import command_line
from tuner.targets import families_of, resolve_target

# Functions that launch the kernels of families, by the family; and those of others.
_LAUNCHERS = {
    "fused_moe": r"invoke_fused_moe\w*|fused_moe_kernel\w*|(?:fused|outplace|inplace)_\w*experts",
    "dense_gemm": r"w8a8_block_(?:fp8|int8)_\w+|\w*scaled_mm\w*",
    "chunk_scan": r"_?mamba_chunk_scan\w*|_?(?:chunk_(?:scan|state|cumsum)|bmm_chunk)_fwd\w*",
    "attention": r"(?:extend|decode|unified|context)_attention\w*|\w*attention_fwd\w*"
    r"|_decode_(?:grouped_)?att_m_fwd|kernel_unified_attention\w*",
}
# A file or a backend of attention kernels that people name beside the message.
_ATTENTION = re.compile(
    r"[\w./-]*(?:unified|extend|decode|prefill)_attention\w*\.py|\bTRITON_ATTN\b"
)
# What launches kernels that are not Triton's, beside those or in their place.
_COMPILED = re.compile(r"flashinfer|trtllm|cutlass|deep_?gemm|deepep|marlin|aiter|flash_?mla")
_CACHE = re.compile(r"cache|attention|_fwd_kernel|_fwd_grouped")  # kernels that read or write it
# The reason of a compile error, at the end of a source that Triton quotes.
_REASON = re.compile(r"\b\w*(?:Error|Exception)\w*[(:][^\n]{3,300}|Input shapes should have [^\n]+")
# What a limit that two kinds of cards have tells.
_TOLD_BY = {
    65536: (
        "Blocks have 65,536 bytes on Turing (sm_75: T4, RTX 20) and on most AMD cards (MI200, "
        "MI300, Radeon). "
        "Of the engines' kernels, attention with wide heads (head_dim of 256 or 512) and fused-MoE "
        "need most.",
    )
}
# Releases whose defaults for experts fit a limit that those of earlier ones exceed.
_FITS = {
    101376: (  # 0.5.13 and 0.5.14 were read: _use_low_smem_fp8_default
        "sglang: Use 0.5.14 or later, if the weights are fp8 without blocks: its defaults for them "
        "fit into 101,376 bytes, and those of earlier releases do not.",
    )
}
# A kernel that ROCm's runtime names below a fault, and parts of AITER by words in its name.
_HIP_KERNEL = re.compile(r"Kernel Name: ([A-Za-z_]\w{2,200})")
_AITER = (
    (r"moe|topk", "MOE"),
    (r"mla", "MLA"),
    (r"fmha|mha|attn|attention", "MHA"),
    (r"norm", "RMSNORM"),
    (r"gemm|linear", "LINEAR"),
)
# Code by which servers ask each other and stores for the KV cache.
_TRANSFERS = re.compile(r"/kv_transfer/|/disaggregation/|/mem_cache/storage/|mooncake_store")
_WHOLE = (
    "Give the whole traceback to `tuner diagnose`: the file above triton's own lines names the "
    "kernel."
)
# A function in what handlers of faults print of compiled code.
_NATIVE = re.compile(
    r"PC: @ +0x[0-9a-f]+ +\(unknown\) +([A-Za-z_][\w:]*)"
    r"|File \"<unknown>\", line 0, in (?!c10\b|0x)([A-Za-z_][\w:]*)"
)
_DIGITS = 18  # of a number; a log may be made up


def shared_memory(finding: LogFinding, context: Context) -> Added:
    """Whose kernel it was, what it needs by release and Triton, and what helps."""
    required, limit = (_bytes(finding.values.get(name, "0")) for name in ("required", "limit"))
    known = context.device()
    cards = [known] if known else devices_with(limit)
    frame = launch_of(finding.frames) or _frame_around(finding)
    details: dict[str, Any] = {"required_bytes": required, "limit_bytes": limit}
    if other := context.unsupported():
        return Added((), (other,), details)
    if frame:
        details["kernel"] = {"file": frame.path, "line": frame.line, "function": frame.function}
    for name in engine_names():
        if not supports(name, "attention") or context.engine_of(finding) not in ("", name):
            continue
        module = engine_module(name, "attention.crash")
        place = (frame.path, frame.line) if frame else None
        if answer := module.explain(required, limit, place, context.version(name), cards):
            details |= answer.details
            return Added(answer.cause, answer.fix, details, _mend(answer, name, context))
    return _elsewhere(finding, frame, context, details)


def compile_error(finding: LogFinding, context: Context) -> Added:
    """The kernel and the reason, which stand below the message, and its place."""
    kernel = re.search(r"\bdef (\w+)\(", finding.around)
    reason = _REASON.search(finding.around.partition("CompilationError")[2])
    where = surfaced(finding, context).cause
    return Added(
        (
            *([f"The kernel is {kernel[1]}."] if kernel else []),
            *([f"The reason: {reason[0]}"] if reason else []),
            *where,
        )
    )


_DRAFT = re.compile(r"/speculative/|/spec_decode/|draft_worker|load_draft|_drafter")
_OF_DRAFT = (
    "The frames above are of speculative decoding: it is the draft model that is loaded or runs "
    "there, and not the model that is served. Flags for loading hold for it too."
)
_DRAFT_ALONE = (
    "Start once without speculative decoding. If that works, take a draft that was made for this "
    "very model and for this engine's release (sglang: --speculative-draft-load-format auto, if "
    "--load-format is another one)."
)


def surfaced(finding: LogFinding, context: Context) -> Added:
    """The place of the engine's code at which an error came up."""
    frame = launch_of(finding.frames)
    if frame is None:
        return Added()
    where = f"It came up at {frame.path}, line {frame.line}, in {frame.function}."
    if row := _known_kernel(frame):
        return Added((where, row["cause"]), tuple(row["fix"]))
    if any(_DRAFT.search(f"{one.path} {one.function}") for one in finding.frames):
        return Added((where, _OF_DRAFT), (_DRAFT_ALONE,))
    return Added((where,))


def refused_within(finding: LogFinding, context: Context) -> Added:
    """Tell what to ask of a server if its client finds nobody."""
    if any("lmcache" in frame.path.lower() for frame in finding.frames):
        return Added(
            (
                "The client here is the server itself: LMCache asks the store that "
                "LMCACHE_REMOTE_URL, or remote_url in its config file, names.",
            ),
            (
                "Start that store first (lmcache_server, Redis or what the address names), and try "
                "its address from the server's host or container (HOST and PORT are those of the "
                "address): `nc -vz HOST PORT`.",
                "To serve without it, leave the address out, or --kv-transfer-config.",
            ),
            instead=True,
        )
    if any(_TRANSFERS.search(frame.path) for frame in finding.frames):
        return Added(
            (
                "The client here is the server itself: it asks another server of the cluster, or a "
                "store, for parts of the KV cache.",
            ),
            (
                "See in the lines above which address it asks, whether that server runs, and "
                "whether it is reached from here (HOST and PORT are those of the address): "
                "`nc -vz HOST PORT`.",
            ),
            instead=True,
        )
    return Added()


def hip_faulted(finding: LogFinding, context: Context) -> Added:
    """The kernel that ROCm's runtime names below a fault, and whose kernels run."""
    added = surfaced(finding, context)
    cause, fix = added.cause, added.fix
    if chip := context.facts.get("gfx_override"):
        cause = (
            *cause,
            f"The text sets HSA_OVERRIDE_GFX_VERSION={chip}, by which kernels of another chip run "
            "on this one. That may be the cause: leave it out, and use a build of torch and engine "
            "that has this chip.",
        )
    if named := _HIP_KERNEL.search(finding.around):
        cause = (f"The runtime names a kernel that was in the queue: {named[1]}.", *cause)
    if named and "aiter" in named[1]:
        part = next((one for words, one in _AITER if re.search(words, named[1])), "")
        alone = f"VLLM_ROCM_USE_AITER_{part}=0 leaves this part of them out, and " if part else ""
        fix = (
            f"It is one of AITER's kernels. vLLM: {alone}VLLM_ROCM_USE_AITER=0 leaves all out.",
            *fix,
        )
    return replace(added, cause=cause, fix=fix)


def captured(finding: LogFinding, context: Context) -> Added:
    """The place of the engine's code, and where the reason stands if sglang names none."""
    added = surfaced(finding, context)
    if finding.values.get("reason"):
        return added
    silent = (
        "sglang names no reason here: the exception that ended the capture has no words, as a "
        "failed assertion. Its traceback stands above `During handling of the above exception`, "
        "and the last frame there is the place."
    )
    return replace(added, cause=(silent, *added.cause))


def faulted(finding: LogFinding, context: Context) -> Added:
    """The place at which a fault of a kernel came up, and what the text switches on."""
    added = surfaced(finding, context)
    return replace(added, fix=(*added.fix, *chosen(context.facts.settings)))


def _known_kernel(frame: Frame) -> Mapping[str, Any] | None:
    """The table's row of a kernel that no family has."""
    place = f"{frame.path} {frame.function}"
    rows = shipped_toml(__package__, "kernels.toml")["kernel"]
    return next((row for row in rows if re.search(row["launcher"], place)), None)


# Functions by which a program begins, outside of which nothing is named.
_ENTERS = ("_start", "Py_BytesMain", "Py_RunMain", "main")


def crashed_in(finding: LogFinding, context: Context) -> Added:
    """The function of compiled code in which a process ended, below the message."""
    named = _NATIVE.search(finding.around)
    if named and (named[1] or named[2]) not in _ENTERS:
        return Added((f"The innermost function that is named is {named[1] or named[2]}.",))
    return Added()


def fp8_kernel(finding: LogFinding, context: Context) -> Added:
    """Which kernel has the type, and so whether weights or the KV cache do."""
    if not (named := re.search(r"\bdef (\w+)\(", finding.around)):
        return Added()
    whose = "the KV cache is fp8" if _CACHE.search(named[1]) else "the weights are fp8"
    return Added((f"The kernel is {named[1]}: {whose}.",))


def gpu_memory(finding: LogFinding, context: Context) -> Added:
    """Whether it failed while Triton timed the candidates of a kernel."""
    timed = any(
        re.search(r"triton/(?:runtime/autotuner|testing)\.py", f.path) for f in finding.frames
    )
    if not timed:
        return Added()
    frame = launch_of(finding.frames)
    whose = f" of {frame.path}, in {frame.function}" if frame else ""
    return Added(
        (
            f"It failed while Triton timed candidates for a kernel{whose} at its first launch: "
            "that takes memory, and the engine had given it to the KV cache before.",
        ),
        (
            "vLLM: For this, 0.02 to 0.05 less of --gpu-memory-utilization is enough; newer "
            "releases time such kernels before they size the KV cache.",
            "sglang: For this, 0.02 to 0.05 less of --mem-fraction-static is enough.",
        ),
    )


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


def launch_of(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame that is the engine's: where the kernel was launched."""
    return next((frame for frame in reversed(frames) if not _of_triton(frame)), None)


def _frame_around(finding: LogFinding) -> Frame | None:
    """A frame that launches a known kernel, in lines that people put below the message."""
    found = re.findall(r'File "([^"\n]+)", line (\d{1,9}), in (\w+)', finding.around)
    frames = (Frame(path, int(line), function) for path, line, function in found)
    return next((frame for frame in frames if family_launched_at(frame)), None)


def _of_triton(frame: Frame) -> bool:
    """Whether a frame is Triton's or torch's, and not of a folder of that name in a package."""
    path = frame.path.replace("\\", "/")
    inner = re.search(r"(?:^|/)(?:triton/(?:runtime|compiler|backends|testing\.py)|torch/)", path)
    return bool(inner) and package_of(frame) in ("", "torch", "triton")


def _elsewhere(
    finding: LogFinding, frame: Frame | None, context: Context, details: dict[str, Any]
) -> Added:
    """The answer for kernels that are not known to be sglang's attention."""
    row = _known_kernel(frame) if frame else None
    if not row and (program := _other_program(frame, context)):
        whose = f"The kernel is {program}'s" if frame else f"The text is of {program}"
        return Added(
            (f"{whose}: this tuner has kernels of sglang and vLLM alone, and can make none fit.",),
            (f"Use a newer release of {program}, or start the server with another backend.",),
            {**details, "program": program},
        )
    if frame:
        function = f", in {frame.function}" if frame.function else ""
        where = f"The kernel was launched at {frame.path}, line {frame.line}{function}."
    elif named := _ATTENTION.search(finding.around):
        function = named[0].rpartition("/")[2].partition(".")[0]
        frame = Frame(named[0], 0, function.replace("TRITON_ATTN", "unified_attention"))
        where = f"The text names {frame.path}, which launches attention."
    else:
        return _of_nothing(finding, context, details)
    return _of_kernel(frame, where, context.engine_of(finding), context, details)


def _of_nothing(finding: LogFinding, context: Context, details: dict[str, Any]) -> Added:
    """The answer if nothing names the kernel: what the model has, and what is asked for."""
    cause = "The traceback is cut, or not there: nothing shows which kernel it was."
    if finding.frames:
        cause = "The traceback is cut: it shows only triton's own frames, and not the kernel."
    if row := _known_kernel(Frame(context.facts.get("kernels"), 0, "")):
        return Added((cause, row["cause"]), (_WHOLE, *row["fix"]), details)
    causes = (cause, *_TOLD_BY.get(details["limit_bytes"], ()))
    asked = _families_of(context)
    if needs := _compiled(asked, details["required_bytes"], context):
        return _by_bytes(needs, asked, cause, context, details)
    return Added(causes, (_WHOLE, *_families_to_check(asked, context)), details)


def _of_kernel(
    frame: Frame, where: str, engine: str, context: Context, details: dict[str, Any]
) -> Added:
    """The answer for a kernel whose file is known; `where` is the sentence that names it."""
    if row := _known_kernel(frame):
        return Added((where, row["cause"]), tuple(row["fix"]), details)
    family = family_launched_at(frame)
    if family is None:
        step = "Use a newer release of the engine, or another backend: its constants stand there."
        return Added((where,), (step,), details)
    if engine and not supports(engine, family.name):
        none = (
            f"{ENGINES[engine]} reads no file for {family.title}: its constants stand in its code."
        )
        attention = family.name == "attention"
        other = "another --attention-backend" if attention else "a GPU with more of it for a block"
        step = f"Use a newer release of the engine, or {other}."
        return Added((where, none, *_TOLD_BY.get(details["limit_bytes"], ())), (step,), details)
    why = (
        f"It is a kernel of {family.title}. Its constants come from a config file or from the "
        "engine's defaults, and do not fit here."
    )
    check = (
        "If the server's log names a config file that it loaded, give that file to `tuner check`, "
        "which compiles each entry for a GPU."
    )
    if needs := _compiled([family], details["required_bytes"], context):
        return _by_bytes(needs, [family], where, context, details)
    newer = _FITS.get(details["limit_bytes"], ()) if family.name == "fused_moe" else ()
    return Added((where, why), (check, *newer, *_tune_steps([family], context)), details)


def family_launched_at(frame: Frame) -> Family | None:
    """The family whose kernel a frame launches; None for other kernels."""
    if _COMPILED.search(f"{frame.path.rpartition('/')[2]} {frame.function}"):
        return None
    name = next((n for n, form in _LAUNCHERS.items() if re.search(form, frame.function)), None)
    if name is None and "fused_moe" in frame.path:
        name = "fused_moe"
    return next((one for one in families() if one.name == name), None)


def _other_program(frame: Frame | None, context: Context) -> str:
    """The program that is neither sglang nor vLLM and launched the kernel; "" if there is none."""
    if frame is None:
        return context.program()
    package = package_of(frame)
    return "" if package in engine_names() else package


def _families_of(context: Context) -> list[Family]:
    """The families that the model has; all that the engine runs if the model is not known."""
    name, engine = context.target(), context.engine_name()
    serving = Serving(engine=engine or "sglang", tp=context.tp or 1)
    found = families_of(name, serving) if name else list(families())
    return [one for one in found if not engine or supports(engine, one.name)]


def _families_to_check(found: Sequence[Family], context: Context) -> list[str]:
    """Which kernels the model has, and the commands that compile what the engine would launch."""
    titles = ", ".join(one.title for one in found)
    name = context.target()
    if not found:
        return [f"This tuner has no kernels of {name}."]
    whose = f"{name} has" if name else "This tuner knows kernels of"
    return [f"{whose} these: {titles}.", *_unknown_layers(context), *_tune_steps(found, context)]


def _compiled(among: Sequence[Family], required: int, context: Context) -> Needs | None:
    """What these kernels need on the server's GPU; None where facts or the release are missing."""
    name, device = context.engine_name(), context.device()
    model = context.target()
    engine = context.engine(name) if name and context.version(name) else None
    if not (model and context.tp and device and engine):
        return None
    return that_need(required, model, context.tp, engine, device, among)


def _by_bytes(
    needs: Needs,
    among: Sequence[Family],
    cause: str,
    context: Context,
    details: dict[str, Any],
) -> Added:
    """The answer where the bytes that kernels need were compared with those of the message."""
    said = in_words(needs)
    details["launches"] = list(needs.found)
    if not needs.found:
        steps = (*_unknown_layers(context), *_tune_steps(among, context))
        return Added((cause, *said), (_WHOLE, *steps), details)
    found = list(dict.fromkeys(family_of(problem) for problem in needs.problems))
    return Added((cause, *said), tuple(_tune_steps(found, context, own=needs.own)), details)


def _tune_steps(found: Sequence[Family], context: Context, *, own: bool = True) -> list[str]:
    """The commands that compile a model's kernels for the server's GPU; else what they lack.

    `own`: the checkpoint is as the preset of its name.
    """
    engine = context.engine_name()
    if too_old := context.too_old():
        return [too_old]
    if lacks := context.missing(engine, model=True):
        return [f"If it is one of them, `tuner tune` makes files that fit. {lacks}"]
    options = context.options(engine)
    model = context.target() if own else ""
    whose = context.model if own else "the very checkpoint that is served"
    steps = [] if model else [f"Copy config.json of {whose} to this folder."]
    commands: list[str] = []
    flags = [(family.flag, family) for family in found]
    if not model and len(flags) > 1:
        flags = [("--all", found[0])]  # nothing tells which of them the model has
    for flag, family in flags:
        if model and (lacks := why_not(family, engine, context)):
            steps.append(f"Not tuned here: {family.title}, because {lacks}.")
            continue
        served = context.serving(engine, family)
        words = [model or "config.json", *([flag] if flag else []), *served, *options]
        commands.append(f"$ {command_line('tuner', 'tune', *words)}")
    if commands:
        steps.append("Compile the engine's defaults for this GPU, and find constants that fit:")
    return [*steps, *commands]


def _unknown_layers(context: Context) -> list[str]:
    """Sentences on layers that the model may have, and whose sizes are not known."""
    if not context.target():
        return []
    reasons = {one.title: why_not(one, context.engine_name(), context) for one in families()}
    return [
        f"Left out: {title}; {why}." for title, why in reasons.items() if "are not known" in why
    ]


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


def _bytes(text: str) -> int:
    return int(text.replace(",", "")[:_DIGITS])

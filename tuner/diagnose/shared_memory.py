"""Answer a Triton kernel that needs too much shared memory: name its owner, and constants that
fit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.devices.table import devices
from tuner.diagnose.computed_answer import ComputedAnswer, LocalRemedy
from tuner.diagnose.context import Context
from tuner.diagnose.findings import Frame, LogFinding
from tuner.diagnose.launches import Needs, in_words, that_need
from tuner.diagnose.missing import why_not
from tuner.engines.engine import engine_module, engine_names, supports
from tuner.engines.logs.served import ENGINES
from tuner.families.attention.engine import attention_engine
from tuner.files import shipped_toml
from tuner.models.serving import Serving
from tuner.problems.registry import Family, families, family_of
from tuner.shell import command_line
from tuner.targets import families_of

# Functions that launch the kernels of families, by the family.
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
# Functions that launch kernels that are not Triton's, beside Triton's or in their place.
_COMPILED = re.compile(r"flashinfer|trtllm|cutlass|deep_?gemm|deepep|marlin|aiter|flash_?mla")
# Sentences on a limit that two kinds of cards have.
_TOLD_BY = {
    65536: (
        "Blocks have 65,536 bytes on Turing (sm_75: T4, RTX 20) and on most AMD cards (MI200, "
        "MI300, Radeon). "
        "Of the engines' kernels, attention with wide heads (head_dim of 256 or 512) and fused-MoE "
        "need most.",
    )
}
# Releases whose defaults for experts fit a limit that earlier releases exceed.
_FITS = {
    101376: (  # 0.5.13 and 0.5.14 were read: _use_low_smem_fp8_default
        "sglang: Use 0.5.14 or later, if the weights are fp8 without blocks: its defaults for them "
        "fit into 101,376 bytes, and the defaults of earlier releases do not.",
    )
}
_WHOLE = (
    "Give the whole traceback to `tuner diagnose`: the file above triton's own lines names the "
    "kernel."
)
_DIGITS = 18  # of a number; a log may be made up
_CANDIDATE = "No valid triton configs"  # torch.compile passes over a candidate that does not fit
_INSTALLED = re.compile(r"(?:site|dist)-packages/(\w+)")


def shared_memory(finding: LogFinding, context: Context) -> ComputedAnswer | None:
    """Name the kernel's owner, its needs by release and Triton, and the steps that help."""
    if _CANDIDATE in finding.text:
        return None
    required, limit = (_bytes(finding.values.get(name, "0")) for name in ("required", "limit"))
    known = context.device()
    cards = [known] if known else [one for one in devices() if one.shared_optin_bytes == limit]
    frame = launch_of(finding.frames) or _frame_below(finding)
    details: dict[str, Any] = {"required_bytes": required, "limit_bytes": limit}
    if other := context.unsupported():
        return ComputedAnswer((), (other,), details)
    if frame:
        details["kernel"] = {"file": frame.path, "line": frame.line, "function": frame.function}
    for name in engine_names():
        if not supports(name, "attention") or context.engine_of(finding) not in ("", name):
            continue
        module = engine_module(name, "attention.crash")
        place = (frame.path, frame.line) if frame else None
        if answer := module.explain(required, limit, place, context.version(name), cards):
            details |= answer.details
            return ComputedAnswer(answer.cause, answer.fix, details, _mend(answer, name, context))
    return _elsewhere(finding, frame, context, details)


def _known_kernel(frame: Frame) -> Mapping[str, Any] | None:
    """Return the table's row of a kernel that no family has."""
    place = f"{frame.path} {frame.function}"
    rows = shipped_toml(__package__, "messages.toml")["kernel"]
    return next((row for row in rows if re.search(row["launcher"], place)), None)


def launch_of(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame that is the engine's: the place of the kernel's launch."""
    return next((frame for frame in reversed(frames) if not _of_triton(frame)), None)


def _frame_below(finding: LogFinding) -> Frame | None:
    """Return a frame that launches a known kernel, if people put the traceback below."""
    found = re.findall(r'File "([^"\n]+)", line (\d{1,9}), in (\w+)', finding.around)
    frames = (Frame(path, int(line), function) for path, line, function in found)
    return next((frame for frame in frames if family_launched_at(frame)), None)


def _of_triton(frame: Frame) -> bool:
    """Say whether a frame is Triton's or torch's, and not of a package's folder of that name."""
    path = frame.path.replace("\\", "/")
    inner = re.search(r"(?:^|/)(?:triton/(?:runtime|compiler|backends|testing\.py)|torch/)", path)
    return bool(inner) and _package_of(frame) in ("", "torch", "triton")


def _package_of(frame: Frame) -> str:
    """Return the package that a frame's file belongs to; "" if its path does not show it."""
    path = "/" + frame.path.replace("\\", "/")
    installed = _INSTALLED.findall(path)
    engines = [name for name in engine_names() if f"/{name}/" in path]
    return str([*engines, *installed][-1]) if engines or installed else ""


def _elsewhere(
    finding: LogFinding, frame: Frame | None, context: Context, details: dict[str, Any]
) -> ComputedAnswer:
    """Answer for kernels that are not known to be sglang's attention."""
    if frame:
        package = _package_of(frame)
        if package and package not in engine_names() and not _known_kernel(frame):
            whose = f"The kernel is {package}'s: this tuner has kernels of sglang and vLLM alone."
            step = f"Use a newer release of {package}, or start the server with another backend."
            return ComputedAnswer((whose,), (step,), {**details, "program": package})
        function = f", in {frame.function}" if frame.function else ""
        where = f"The kernel was launched at {frame.path}, line {frame.line}{function}."
    elif named := _ATTENTION.search(finding.around):
        function = named[0].rpartition("/")[2].partition(".")[0]
        frame = Frame(named[0], 0, function.replace("TRITON_ATTN", "unified_attention"))
        where = f"The text names {frame.path}, which launches attention."
    else:
        return _of_nothing(finding, context, details)
    return _of_kernel(frame, where, context.engine_of(finding), context, details)


def _of_nothing(finding: LogFinding, context: Context, details: dict[str, Any]) -> ComputedAnswer:
    """Answer if nothing names the kernel: list the model's kernels, and ask for the missing
    facts.
    """
    cause = "The traceback is cut, or not there: nothing shows which kernel it was."
    if finding.frames:
        cause = "The traceback is cut: it shows only triton's own frames, and not the kernel."
    causes = (cause, *_TOLD_BY.get(details["limit_bytes"], ()))
    asked = _families_of(context)
    if needs := _compiled(asked, details["required_bytes"], context):
        return _by_bytes(needs, asked, cause, context, details)
    return ComputedAnswer(causes, (_WHOLE, *_families_to_check(asked, context)), details)


def _of_kernel(
    frame: Frame, where: str, engine: str, context: Context, details: dict[str, Any]
) -> ComputedAnswer:
    """Answer for a kernel whose file is known; `where` is the sentence that names it."""
    if row := _known_kernel(frame):
        return ComputedAnswer((where, row["cause"]), tuple(row["fix"]), details)
    family = family_launched_at(frame)
    if family is None:
        step = "Use a newer release of the engine, or another backend: its constants stand there."
        return ComputedAnswer((where,), (step,), details)
    if engine and not supports(engine, family.name):
        none = (
            f"{ENGINES[engine]} reads no file for {family.title}: its constants stand in its code."
        )
        attention = family.name == "attention"
        other = "another --attention-backend" if attention else "a GPU with more of it for a block"
        step = f"Use a newer release of the engine, or {other}."
        return ComputedAnswer(
            (where, none, *_TOLD_BY.get(details["limit_bytes"], ())), (step,), details
        )
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
    return ComputedAnswer((where, why), (check, *newer, *_tune_steps([family], context)), details)


def family_launched_at(frame: Frame) -> Family | None:
    """Return the family whose kernel a frame launches; None for other kernels."""
    if _COMPILED.search(f"{frame.path.rpartition('/')[2]} {frame.function}"):
        return None
    name = next((n for n, form in _LAUNCHERS.items() if re.search(form, frame.function)), None)
    if name is None and "fused_moe" in frame.path:
        name = "fused_moe"
    return next((one for one in families() if one.name == name), None)


def _families_of(context: Context) -> list[Family]:
    """List the families that the model has; all that the engine runs if the model is not known."""
    name, engine = context.target(), context.engine_name()
    serving = Serving(engine=engine or "sglang", tp=context.tp or 1)
    found = families_of(name, serving) if name else list(families())
    return [one for one in found if not engine or supports(engine, one.name)]


def _families_to_check(found: Sequence[Family], context: Context) -> list[str]:
    """Return the model's kernels, and the commands that compile the launches."""
    titles = ", ".join(one.title for one in found)
    name = context.target()
    if not found:
        return [f"This tuner has no kernels of {name}."]
    whose = f"{name} has" if name else "This tuner knows kernels of"
    return [f"{whose} these: {titles}.", *_unknown_layers(context), *_tune_steps(found, context)]


def _compiled(among: Sequence[Family], required: int, context: Context) -> Needs | None:
    """Compile these kernels for the server's GPU, and return their needs; None if facts or the
    release are missing.
    """
    name, device = context.engine_name(), context.device()
    model = context.target()
    engine = context.engine(name) if name and context.version(name) else None
    if not (model and context.tp and device and engine):
        return None
    return that_need(required, model, context.tp, engine, device, among)


def _by_bytes(
    needs: Needs, among: Sequence[Family], cause: str, context: Context, details: dict[str, Any]
) -> ComputedAnswer:
    """Answer with the launches whose bytes were compared with the message's bytes."""
    said = in_words(needs)
    details["launches"] = list(needs.found)
    if not needs.found:
        steps = (*_unknown_layers(context), *_tune_steps(among, context))
        return ComputedAnswer((cause, *said), (_WHOLE, *steps), details)
    found = list(dict.fromkeys(family_of(problem) for problem in needs.problems))
    return ComputedAnswer(
        (cause, *said), tuple(_tune_steps(found, context, own=needs.own)), details
    )


def _tune_steps(found: Sequence[Family], context: Context, *, own: bool = True) -> list[str]:
    """Return the commands that compile a model's kernels for the server's GPU; else the missing
    facts.

    `own`: the checkpoint is as the preset of its name.
    """
    engine = context.engine_name()
    if too_old := context.too_old():
        return [too_old]
    if lacks := context.missing(engine, model=True):
        return [f"If the kernel is among them, `tuner tune` makes files that fit. {lacks}"]
    options = context.options(engine)
    model = context.target() if own else ""
    whose = context.model if own else "the very checkpoint that is served"
    steps = [] if model else [f"Copy config.json of {whose} to this folder."]
    commands: list[str] = []
    chosen = [(family.words, family) for family in found]
    if not model and len(chosen) > 1:
        chosen = [(("--all",), found[0])]  # nothing tells which of them the model has
    for choice, family in chosen:
        if model and (lacks := why_not(family, engine, context)):
            steps.append(f"Not tuned here: {family.title}, because {lacks}.")
            continue
        served = context.serving(engine, family)
        words = [model or "config.json", *choice, *served, *options]
        commands.append(f"$ {command_line('tuner', 'tune', *words)}")
    if commands:
        steps.append("Compile the engine's defaults for this GPU, and find constants that fit:")
    return [*steps, *commands]


def _unknown_layers(context: Context) -> list[str]:
    """Return sentences on layers that the model may have, and whose sizes are not known."""
    if not context.target():
        return []
    reasons = {one.title: why_not(one, context.engine_name(), context) for one in families()}
    return [
        f"Left out: {title}; {why}." for title, why in reasons.items() if "are not known" in why
    ]


def _mend(answer: Any, name: str, context: Context) -> LocalRemedy | None:  # noqa: ANN401  # of an engine
    """Return the patch for the file of the traceback, else for the engine of the command line."""
    device = context.device()
    if device is None:
        return None
    if answer.engine and answer.remedy:
        return LocalRemedy(answer.engine, device, answer.remedy)
    engine = context.engine(name) if context.hints.engine else None
    remedy = attention_engine(engine).remedy(device) if engine else None
    return LocalRemedy(engine, device, remedy) if engine and remedy else None


def _bytes(text: str) -> int:
    return int(text.replace(",", "")[:_DIGITS])

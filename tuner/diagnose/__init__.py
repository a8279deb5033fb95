"""Read logs of servers, and say what their messages mean and what helps.

The messages stand in the TOML files of this folder. Adding one is adding a row.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from tuner.diagnose.added import Added
from tuner.diagnose.answers import ANSWERS
from tuner.diagnose.context import Context, EnginesAdded
from tuner.diagnose.crashes import family_launched_at, launch_of
from tuner.diagnose.findings import Findings, Frame, LogFinding
from tuner.diagnose.report import Diagnosis, Explanation, filled, for_engine
from tuner.diagnose.scan import scan
from tuner.diagnose.table import Kind, known_messages
from tuner.diagnose.tracebacks import caller_of, chosen, of_engine, package_of, step_of, whose
from tuner.engines.engine import release_of
from tuner.engines.logs.served import ENGINES, Hints, check_hints, no_figures
from tuner.errors import BadProblem, UnreadableLog
from tuner.files import shipped_toml
from tuner.shell import command_line

# What steps ask for, and the facts (facts.toml) that the text shows it done.
_ASKED = {
    "NCCL_P2P_DISABLE=1": "p2p_disabled",
    "--enforce-eager": "eager graphs_blamed",
    "--disable-cuda-graph": "no_graphs graphs_blamed",
    "--disable-custom-all-reduce": "no_custom_all_reduce",
}
_AGAINST = re.compile(r"\b(?:[Ll]eave|take the flag out|without it)\b")

# Readings that name no fault, so that which kernels run is still a question.
_OF_SPEED = ("load_steps", "benchmark")

# The file of rows that hold for all code of an engine.
_ANYWHERE = "/(?:vllm|sglang)/"

__all__ = ["Diagnosis", "Hints", "diagnose", "diagnose_text", "read_log"]


def diagnose(paths: Iterable[Path], hints: Hints = Hints()) -> Diagnosis:
    """Read logs of one server or cluster; "-" is the standard input.

    Raises UnreadableLog, and BadInput for hints that name no GPU or engine.
    """
    check_hints(hints)
    return _answered(scan(_streams(paths), known_messages()), hints)


def diagnose_text(text: str, hints: Hints = Hints()) -> Diagnosis:
    """Like `diagnose`, for lines that somebody pasted."""
    check_hints(hints)
    stream = io.BytesIO(text.encode("utf-8", errors="replace"))
    return _answered(scan([("input", stream)], known_messages()), hints)


def read_log(path: Path) -> Findings:
    """What a log holds, and what it says of the server. Raises UnreadableLog."""
    return scan(_streams([path]), known_messages())


def _streams(paths: Iterable[Path]) -> Iterator[tuple[str, BinaryIO]]:
    for path in paths:
        if str(path) == "-":
            yield "stdin", sys.stdin.buffer
            continue
        with contextlib.ExitStack() as stack:
            try:
                stream = stack.enter_context(path.open("rb"))
                stream.peek(1)
            except (OSError, ValueError) as error:  # ValueError: the name holds a NUL
                reason = getattr(error, "strerror", None) or error
                raise UnreadableLog(f"{path} cannot be read: {reason}") from None
            yield path.name, stream


def _answered(findings: Findings, hints: Hints) -> Diagnosis:
    context = Context(hints, findings.facts)
    answers = [_answer(finding, context) for finding in _as_one(findings.found)]
    unsupported = context.unsupported()
    if not answers and not hints.device and (shown := findings.facts.get("device")):
        unsupported = unsupported or no_figures(shown)
    read = tuple(_read(context, findings))
    instead = read if findings.last_frames else _plan(context)
    engine = context.engine_name()
    readings = [
        replace(one, fix=[*_undone(for_engine(one.fix, one.engine or engine), context)])
        for one in findings.readings
    ]
    known = answers or findings.errors or any(one.name not in _OF_SPEED for one in readings)
    program = context.program()
    instead = () if known or program else instead
    added = EnginesAdded()
    return Diagnosis(
        [replace(one, fix=added.before(one.fix)) for one in answers],
        findings,
        unsupported,
        program,
        added.before(instead),
        read,
        [replace(one, fix=added.before(one.fix)) for one in readings],
        tuple(_told(context)),
    )


def _told(context: Context) -> Iterator[str]:
    """What the text says of its server."""
    engine = context.engine_name()
    told = {
        "engine": f"{ENGINES.get(engine, engine)} {context.version(engine)}".strip(),
        "GPU": "" if context.unsupported() else context.hints.device or context.facts.get("device"),
        "model": context.model,
        "tp": str(context.tp or ""),
    }
    for name in ("pp", "dp", "ep"):
        size = context.facts.get(name)
        told[name] = "" if size == "1" else size
    known = ", ".join(f"{name} {value}" for name, value in told.items() if value)
    if known:
        yield f"The text tells: {known}."


def _read(context: Context, findings: Findings) -> Iterator[str]:
    """What was read of a server whose exceptions no message explains, and the sure next step."""
    yield from _told(context)
    error, frames = next(
        iter(findings.frames.items()), (next(iter(findings.errors), ""), findings.last_frames)
    )
    builds = (frame for frame in frames if "flashinfer/jit/" in frame.path)  # above subprocess.py
    if frame := next(builds, None) or launch_of(frames):
        innermost = (
            "The engine's innermost frame" if of_engine(frame) else "The innermost frame read"
        )
        yield f"{innermost}: {frame.path}, line {frame.line}, {frame.function}."
        yield from whose(frame, frames, error)
        if step := step_of(frames):
            yield step
        said = [*_said(error)]
        yield from said
        yield from _place(frame, frames, error, general=not said)
        if of_engine(frame) and (family := family_launched_at(frame)):
            yield (
                f"It launches a kernel of {family.title}, which this tuner tunes: if the log says "
                "that a config file was loaded for it, start the server once without the file."
            )
    else:
        yield from _said(error)
    if error and (caller_of(frames) or not frames):
        yield from chosen(context.facts.settings)
    yield "Give the logs of all ranks from their start on: the first error is the cause."


def _said(error: str) -> Iterator[str]:
    """Yield what an error's own words tell."""
    rows = shipped_toml(__package__, "places.toml")["said"]
    yield from (row["says"] for row in rows if re.search(row["error"], error))


def _place(
    frame: Frame, frames: Sequence[Frame], error: str, *, general: bool = True
) -> Iterator[str]:
    """What the place of an error tells. In another's package, rows of that package tell it, or
    those that hold too for what the engine calls. `general`: rows of the engine as a whole count.
    """
    if error.startswith(("ImportError", "ModuleNotFoundError")):
        return  # of releases that do not fit each other, wherever it stands
    package, caller = package_of(frame), caller_of(frames)
    for row in shipped_toml(__package__, "places.toml")["place"]:
        if row.get("during", "") not in step_of(frames):
            continue
        if (above := row.get("above")) and not any(re.search(above, one.path) for one in frames):
            continue
        own = not package or of_engine(frame) or package in row["file"]
        places = [frame] * own + [caller] * bool(caller and row.get("called"))
        if any(re.search(row["file"], at.path) for at in places if at) and re.search(
            row.get("error", ""), error
        ):
            if general or row["file"] != _ANYWHERE:
                yield row["says"]
            return


def _as_one(found: Sequence[LogFinding]) -> Iterator[LogFinding]:
    """The findings; names of several config files are one, which says what each file is."""
    named = [one for one in found if one.message.answer == "named_file"]
    stems = {one.values.get("card", "").replace("_down", "") + one.values["sizes"] for one in named}
    for finding in found:
        if finding not in named[1:]:
            yield replace(finding, beside=named) if finding in named and len(stems) > 2 else finding


def _plan(context: Context) -> Sequence[str]:
    """What to run if no message is known: a command for a text that names the GPU of a server,
    and for any other only what it tells.
    """
    engine = context.engine_name()
    if context.facts.trouble:
        return (*_told(context),)
    if not context.device() or not engine:
        lacks = context.missing(engine) if context.model else ""
        plan = (f"`tuner plan` says what runs there. {lacks}",) if lacks else ()
        return (*_told(context), *plan) if engine or context.model else ()
    yours = context.target() or "config.json"
    words = [yours, *(["--tp", str(context.tp)] if context.tp else [])]
    whose = f" of {context.model}" if context.model else ""
    copy = [] if context.target() else [f"Copy the model's config.json{whose} to this folder."]
    words += context.options(engine)
    if pair := context.compared(engine):
        spec = context.spec(engine)
        return (
            f"The text compares {ENGINES.get(engine, engine)} {pair[0]} and {pair[1]}: see whether "
            "both run the same kernels, and which of them reads a tuned file.",
            *copy,
            *(_plan_line([f"{engine}=={one}" if w == spec else w for w in words]) for one in pair),
            "Then compare the lines of both starts that name a backend or a flag's default:",
            "$ grep -iE 'backend|kernel|cudagraph|cuda graph|non-default|server_args' server.log",
        )
    return (
        "If the question is speed: which kernels the server runs, and what tuning them brings.",
        *copy,
        _plan_line(words),
    )


def _plan_line(words: Sequence[str]) -> str:
    return f"$ {command_line('tuner', 'plan', *words)}"


def _answer(finding: LogFinding, context: Context) -> Explanation:
    message = finding.message
    added = ANSWERS[message.answer](finding, context) if message.answer else Added()
    engine = context.engine_of(finding) or context.program().lower()
    values = context.values(finding)
    if added.denies:
        finding = replace(finding, message=replace(message, kind=Kind.NOTE))
    cause, fix = () if added.denies else message.cause, () if added.instead else message.fix
    if context.unified and message.unified_fix:
        cause, fix = message.unified_cause, message.unified_fix
    steps = [*filled([*for_engine(fix, engine)], values), *for_engine(added.fix, engine)]
    steps = [*_undone(steps, context)]
    return Explanation(
        _of_release(finding, engine, context.version(engine)),
        [*filled(cause, values), *added.cause],
        [*steps, *_of_words(steps, context)],
        added.details,
        added.mends,
    )


def _of_release(finding: LogFinding, engine: str, version: str) -> LogFinding:
    """The finding with the origins of the server's engine alone, if it is known to have some.

    A release that is older than all that were read was not among them: no release is told then.
    """
    own = [one for one in finding.form.origins if one.program.lower() == engine]
    if not own:
        return finding
    with contextlib.suppress(BadProblem):  # a version that a text cuts
        if version and all(o.since and release_of(version) < release_of(o.since) for o in own):
            own = [replace(one, since="", until="") for one in own[:1]]
    return replace(finding, form=replace(finding.form, origins=own))


def _undone(steps: Iterable[str], context: Context) -> Iterator[str]:
    """The steps, without those that ask for what the text shows to be done already."""
    shown = context.facts.known.keys()
    done = [words for words, facts in _ASKED.items() if shown & set(facts.split())]
    for step in steps:
        if not any(words in step for words in done) or _AGAINST.search(step):
            yield step


def _of_words(fix: Sequence[str], context: Context) -> Iterator[str]:
    """Sentences on what commands take from people's words, other servers and builds."""
    given = " --device "
    for word, name in ((" --tp ", "tp"), (f" tune {context.target()} ", "model")):
        first, other = context.facts.get(name), context.facts.others.get(name)
        if (
            other
            and first
            and any(word in one for one in fix if one[0] == "$")
            and not getattr(context.hints, name)
        ):
            yield (
                f"The text shows {name} {first} and, in {other.where}, {other.value}: the commands "
                "are for the first."
            )
    version = context.version(context.engine_name())
    if version and version not in context.spec(context.engine_name()) and " --engine " in str(fix):
        yield (
            f"The server's version, {version}, is not on PyPI: the commands are for "
            f"{context.spec(context.engine_name())}."
        )
    ours = [one for one in fix if one.startswith("$ tuner ")]
    if context.facts.in_words and not context.hints.device and any(given in one for one in ours):
        yield (
            f"--device is what the text calls {context.facts.get('device')}: if `nvidia-smi -L` "
            "names another GPU on the server, give that name."
        )

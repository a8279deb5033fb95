"""Say which config file a server misses, its problem, and the commands that make it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.devices.table import Device
from tuner.diagnose.computed_answer import ComputedAnswer
from tuner.diagnose.context import Context
from tuner.diagnose.findings import LogFinding
from tuner.diagnose.missing import (
    NOTHING,
    MissingFile,
    commands_for,
    config_file,
    engine_of,
    serving_of,
    steps_for,
    steps_without_problem,
    why_not,
)
from tuner.engines.config_files import misnamed
from tuner.engines.dispatch import engine_runs, looks_late, seen_to_run, stops_at_fp8
from tuner.engines.engine import engine_names, supports
from tuner.engines.logs.facts import facts_of_line
from tuner.engines.logs.served import ENGINES, is_nameless, no_figures, not_tuned_for, unmade
from tuner.engines.settings import of_model, options_text
from tuner.errors import BadInput, SeveralModels
from tuner.families.check import not_among
from tuner.models.serving import Serving
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Problem, folder_version
from tuner.problems.registry import Family, families, parse_problem
from tuner.targets import reader_of, resolve_target

_UNTUNED = "its weights are of a type that this tuner does not tune"
_FP8 = f"dtype={Dtype.FP8_W8A8.value}"
_DEVICE = re.compile(r".*device_name=(.*?)(?:,\w+=.*|(?:_down)?\.json)", re.DOTALL)
# The engines' programs that tune fused-MoE files on the card itself.
_SCRIPTS = {"sglang": "kernels/fused_moe_triton", "vllm": "kernels/benchmark_moe.py"}
_NAME_IT = "Mend the source of the card's name: NVML, or the package amdsmi on AMD's cards."
_FOLDER = re.compile(r"triton_\d+_\d+_\d+")


def missing_file(finding: LogFinding, context: Context) -> ComputedAnswer:
    """Say the file, and the command that tunes it; the families' own parsers read the path."""
    path = finding.values.get("path", "")
    missing = config_file(path, engine_of(finding, context), context, Serving())
    named = _DEVICE.sub(r"\1", missing.name)
    if is_nameless(named):
        return ComputedAnswer(
            (no_figures(named),), (_NAME_IT,), {"file": missing.name}, instead=True
        )
    added = _about(replace(missing, searched=True), context)
    return replace(added, cause=(f"The missing file is {missing.name}.", *added.cause))


def named_file(finding: LogFinding, context: Context) -> ComputedAnswer:
    """Say which problem and engine a named file is for, and the commands that make it."""
    path = "{sizes},device_name={card}".format_map(finding.values)
    name = path.rpartition("/")[2]
    wrong, details = misnamed(name), {"file": name}
    why = context.unsupported(facts_of_line(name).get("device")) or unmade(name)
    if why := why or (f"The name is wrong: {wrong}." if wrong else ""):
        return ComputedAnswer((why,), details=details)
    try:
        family = reader_of(path)
    except BadInput:
        return ComputedAnswer((f"Nothing here makes {name}: {_UNTUNED}.",), details=details)
    readers = _readers(path, name, family) if family else []
    if family is None or not readers:
        looks = "Neither sglang nor vLLM looks for" if family else "No kernel tuned here reads"
        return ComputedAnswer((f"{looks} {name}.",), details=details)
    served = context.engine_of(finding)
    spell = " and ".join(ENGINES[one] for one in readers)
    cause = [f"It is the name of a config file for {family.title}, in the spelling of {spell}."]
    if folder := _FOLDER.search(path):
        cause.append(
            f"It lies in the folder of Triton {folder_version(folder[0])}: a server with another "
            "Triton looks into the folder of its own first."
        )
    if served and served not in readers:
        cause.append(f"{ENGINES[served]} looks for no file that is spelled so.")
    fix: list[str] = []
    asked = [served] if served in readers else readers
    for engine in asked:
        added = _about(config_file(path, engine, context, Serving()), context)
        instead = [*_asked_instead(engine, family, name, context)]
        cause += [one for one in (*added.cause, *instead) if one not in cause]
        fix += [f"If the server is {ENGINES[engine]}:"] if len(asked) > 1 else []
        fix += commands_for(family, engine, context) if instead else added.fix
    return ComputedAnswer(tuple(cause), tuple(fix), {"file": name, "engines": readers})


def _readers(path: str, name: str, family: Family) -> list[str]:
    """List the engines that look for a name so spelled."""
    spelled, reads = facts_of_line(name).get("engine"), family.module("models").reads
    if reads(name[1:]):  # an engine's name and something before it
        return []
    return [one for one in engine_names() if spelled in ("", one) and reads(path, one)]


def _asked_instead(name: str, family: Family, file: str, context: Context) -> Iterator[str]:
    """Yield the files that the text's server asks for instead, if the text tells model, ranks and
    GPU.
    """
    engine, device = context.engine(name), context.device(facts_of_line(file).get("device"))
    unsure = context.facts.get("quantization") or int(context.facts.get("dp") or 0) > 1
    if unsure or not (engine and device and context.target() and context.tp):
        return
    try:
        serving = replace(serving_of(family, name, context, device), engine_version=engine.version)
        found = resolve_target(context.target(), serving, family=family)
        asked = family.module("check").asked_names(found.problems, device, engine)
    except BadInput:
        return
    ep = f", ep={context.ep}" if context.ep > 1 else ""
    server = f"{context.target()} at tp={context.tp}{ep} and otherwise without flags"
    who = f"For {server}, {ENGINES[name]} {engine.version}"
    yield from (one.why for one in not_among([Path(file)], asked, who))


def cut_file(finding: LogFinding, context: Context) -> ComputedAnswer:
    """Give the command that tunes the text's model, for a line that a cut leaves without a name."""
    wanted = "dense_gemm" if "Block" in finding.values.get("layer", "") else "fused_moe"
    family = next(family for family in families() if family.name == wanted)
    engine, model = context.engine_of(finding), context.target()
    if engine and not supports(engine, wanted):
        return ComputedAnswer(fix=(f"This program makes no such file for {ENGINES[engine]}.",))
    if lacks := context.missing(engine, model=True):
        return ComputedAnswer(fix=(lacks,))
    if model and (why := why_not(family, engine, context)):
        return ComputedAnswer(fix=(f"The text names the model {context.model}, and {why}.",))
    copy = "" if model else ": copy its config.json to this folder"
    head = f"The text names the model {context.model}{copy}:"
    return ComputedAnswer(fix=(head, *commands_for(family, engine, context)))


def script_stopped(finding: LogFinding, context: Context) -> ComputedAnswer | None:
    """Give the command that tunes the model, if an engine's tuning script ended at its config."""
    if not any(script in one.path for one in finding.frames for script in _SCRIPTS.values()):
        return None
    return cut_file(finding, context)


def _about(file: MissingFile, context: Context) -> ComputedAnswer:
    """Say which facts the name of a config file holds, and the commands that make the file."""
    details: dict[str, Any] = {"file": file.name}
    resolved, family = file.resolved, file.family
    if family is None:
        return ComputedAnswer(
            fix=(f"Nothing here makes it: {_UNTUNED}.",) if file.error else (), details=details
        )
    if other := context.unsupported(named := facts_of_line(file.name).get("device")):
        return ComputedAnswer(fix=(other,), details=details, instead=True)
    if not context.hints.device and not_tuned_for(named):
        return ComputedAnswer(
            fix=(f"{no_figures(named)} No file is made for it here.",), details=details
        )
    card = context.device(named)
    if card and _FP8 in file.name and (stops := stops_at_fp8(file.engine, family.name, card)):
        return ComputedAnswer(fix=(f"No file is made for it: {stops}.",), details=details)
    strange = (file.stranger,) if file.stranger else ()
    if resolved is None:
        seen, words = _of_any(file, card, context)
        steps = steps_without_problem(file, context, seen)
        return ComputedAnswer((*strange, *words), tuple(steps), details)
    device = context.device(resolved.device_name or "")
    details |= {"problem": resolved.problems[0].spec(), "device": device.name if device else None}
    cause = [*strange, *(f"Read from it: {note}." for note in resolved.notes)]
    seen = NOTHING
    if device and (context.version(file.engine) or not _only_before(file, context)):
        seen, words = _what_runs(file, resolved.problems, device, context)
        cause += words
    return ComputedAnswer(tuple(cause), tuple(steps_for(file, resolved, context, seen)), details)


def _only_before(file: MissingFile, context: Context) -> bool:
    """Say whether the server's release is known only as older than another release."""
    old = file.resolved.older_than if file.resolved else None
    return bool(old or context.facts.get(f"{file.engine}_before"))


def _of_any(
    file: MissingFile, device: Device | None, context: Context
) -> tuple[Mapping[str, str], list[str]]:
    """Do as `_what_runs` for a file whose name fits several models: they run the same kernel."""
    if not isinstance(file.error, SeveralModels) or _only_before(file, context) or not device:
        return NOTHING, []
    problem = parse_problem(next(iter(file.error.problems)))
    return _what_runs(file, [problem], device, context)


def _what_runs(
    file: MissingFile, problems: Sequence[Problem], device: Device, context: Context
) -> tuple[Mapping[str, str], list[str]]:
    """Return settings that the search for a file shows, and sentences on the kernel that the server
    runs.
    """
    engine, version = file.engine, context.version(file.engine)
    flags = of_model(context.facts.settings, context.target())
    seen = seen_to_run(engine, version, problems, device, flags) if file.searched else NOTHING
    runs = engine_runs(engine, version, problems, device, {**flags, **seen})
    late = file.searched and looks_late(engine, version, problems)
    # The line shows more than the rules of a newer release say.
    words = [f"{one.line()}." for one in runs if not (late and one.older and one.may_read)]
    if seen or len(words) < len(runs):
        words.append(
            "This engine looks for the file only as it launches Triton's kernel, so the line shows "
            "that Triton runs, for some batch sizes at least."
        )
    if seen:
        words.append(
            f"{options_text(seen)} tells the commands below; the server needs no new flag."
        )
    return seen, words

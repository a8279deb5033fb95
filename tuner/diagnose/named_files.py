"""What config files are for whose names stand in a text, and the commands that make them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.diagnose.added import Added
from tuner.diagnose.context import Context
from tuner.diagnose.files import about, commands_for, config_file, serving_of
from tuner.diagnose.findings import LogFinding
from tuner.engines.engine import engine_module, engine_names
from tuner.engines.logs.facts import facts_of_line
from tuner.engines.logs.served import ENGINES
from tuner.errors import BadInput
from tuner.families.check import not_among
from tuner.jobs.targets import reader_of, resolve_target
from tuner.models.serving import Serving
from tuner.problems.points import folder_version
from tuner.problems.registry import Family

_MOST = 8  # names in one line that are answered
_FIELD = re.compile(r"(\w+)=(\[[^\]]*\]|[^,]+)")
_FOLDER = re.compile(r"triton_\d+_\d+_\d+")


def named_file(finding: LogFinding, context: Context) -> Added:
    """Each file that the line names: who reads it, its problem, and the commands that make it."""
    served = context.engine_of(finding)
    added = [
        _named(match[0], served, context)
        for match in [*finding.form.pattern.finditer(finding.text)][:_MOST]
    ]
    return Added(
        tuple(dict.fromkeys(line for one in added for line in one.cause)),
        tuple(line for one in added for line in one.fix),
        {"files": [one.details for one in added]},
    )


def _named(path: str, served: str, context: Context) -> Added:
    """One file; `served` is the engine of the text, if it is known."""
    family, name = reader_of(path), path.rpartition("/")[2]
    readers = _readers(path, name, family) if family else []
    details: dict[str, Any] = {"file": name, "engines": readers, "fields": _fields(name, path)}
    if other := context.unsupported(facts_of_line(name).get("device")):
        return Added((other,), details=details)
    if family is None or not readers:
        return Added((f"Neither sglang nor vLLM looks for {name}.",), details=details)
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
    device = context.device(facts_of_line(name).get("device"))
    asked = [served] if served in readers else readers
    for engine in asked:
        added = about(config_file(path, engine, context, Serving()), context)
        details |= added.details
        instead = list(_asked_instead(engine, family, name, context))
        cause += [*_shipped(engine, family, name, context), *added.cause, *instead]
        fix += [f"If the server is {ENGINES[engine]}:"] if len(asked) > 1 else []
        fix += commands_for(family, engine, context, device) if instead else added.fix
    return Added(tuple(cause), tuple(fix), details)


def _readers(path: str, name: str, family: Family) -> list[str]:
    """The engines that look for a name so spelled."""
    spelled, reads = facts_of_line(name).get("engine"), family.module("models").reads
    if reads(name[1:]):  # an engine's name and something before it
        return []
    return [one for one in engine_names() if spelled in ("", one) and reads(path, one)]


def _shipped(name: str, family: Family, file: str, context: Context) -> Iterator[str]:
    """Whether the engine ships the file, if the engine is on this machine."""
    engine = context.engine(name)
    if engine is None:
        return
    try:
        configs = engine_module(name, family.name).open_family(engine).configs
    except BadInput:
        return
    found = next((path for path in configs.rglob("*.json") if path.name == file), None)
    where = f"ships it: {found.relative_to(engine.root.parent)}" if found else "ships no such file"
    yield f"{ENGINES[name]} {engine.version} {where}."


def _asked_instead(name: str, family: Family, file: str, context: Context) -> Iterator[str]:
    """What the engine asks for instead, if the text tells model, ranks and GPU of a server, and the
    engine is on this machine.
    """
    engine, device = context.engine(name), context.device(facts_of_line(file).get("device"))
    unsure = context.facts.get("quantization") or int(context.facts.get("dp") or 0) > 1
    if unsure or not (engine and device and context.target() and context.tp):
        return
    try:
        serving = serving_of(family, name, context, device)
        serving = replace(serving, engine_version=engine.version)
        found = resolve_target(context.target(), serving, family=family)
        asked = family.module("check").asked_names(found.problems, device, engine)
    except BadInput:
        return
    ep = f", ep={context.ep}" if context.ep > 1 else ""
    server = f"{context.target()} at tp={context.tp}{ep} and otherwise without flags"
    who = f"For {server}, {ENGINES[name]} {engine.version}"
    yield from (one.why for one in not_among([Path(file)], asked, who))


def _fields(name: str, path: str) -> dict[str, str]:
    """The fields of a name, and the Triton of its folder."""
    found = dict(_FIELD.findall(name.removesuffix(".json")))
    folder = _FOLDER.search(path)
    return found | ({"triton": folder_version(folder[0])} if folder else {})

"""What config files are for whose names stand in a text, and the commands that make them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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
from tuner.errors import BadInput, SeveralModels
from tuner.families.check import not_among
from tuner.jobs.targets import reader_of, resolve_target
from tuner.models.serving import Serving
from tuner.models.table import find_preset
from tuner.problems.points import folder_version
from tuner.problems.registry import Family

_MOST = 8  # names in one line that are answered
_FIELD = re.compile(r"(\w+)=(\[[^\]]*\]|[^,]+)")
_DTYPE = re.compile(r"\b((?:fp8|int8)_w8a8|int8_w8a16|int4_w4a16)\b")
_BLOCK = re.compile(r"block_shape=\[(\d{1,6}), ?(\d{1,6})\]")
_FOLDER = re.compile(r"triton_\d+_\d+_\d+")


def named_file(finding: LogFinding, context: Context) -> Added:
    """Each file that the line names: who reads it, its problem, and the commands that make it."""
    if finding.beside:
        return _several_files(finding.beside, context)
    served = context.engine_of(finding)
    matches = finding.form.pattern.finditer(finding.text)
    paths = {one[0].rpartition("/")[2]: one[0] for one in matches}
    added = [_named(path, served, context) for path in [*paths.values()][:_MOST]]
    return Added(
        tuple(dict.fromkeys(line for one in added for line in one.cause)),
        tuple(line for one in added for line in one.fix),
        {"files": [one.details for one in added]},
    )


def _several_files(findings: Sequence[LogFinding], context: Context) -> Added:
    """A line for each of many files that a text names, such as a folder's listing."""
    found = []
    for finding in findings:
        paths = {match[0]: None for match in finding.form.pattern.finditer(finding.text)}
        found += [(path, context.engine_of(finding)) for path in paths]
    rows = dict.fromkeys(_row(path, served, context) for path, served in found)
    model, engine = context.target(), found[0][1]
    device = context.device(facts_of_line(found[0][0].rpartition("/")[2]).get("device"))
    if model and engine and context.tp and not context.missing(engine, device):
        commands = commands_for(reader_of(found[0][0]), engine, context, device)
        fix = (f"The files that {context.model} asks for are made so:", *commands)
    else:
        fix = (
            "Give the line `Config file not found at` of the server, or its model: `tuner tune "
            "MODEL --tp N --device GPU --engine ENGINE` makes the files of the model.",
        )
    return Added(tuple(rows), fix, {"files": [path.rpartition("/")[2] for path, _ in found]})


def _row(path: str, served: str, context: Context) -> str:
    """What one file is for, and whether an engine ships it, in few words."""
    family, name = reader_of(path), path.rpartition("/")[2]
    readers = _readers(path, name, family) if family else []
    if other := context.unsupported(facts_of_line(name).get("device")):
        return f"{name}: {other}"
    if not family or not readers:
        return f"{name}: neither sglang nor vLLM looks for it"
    engine = served if served in readers else readers[0]
    file = config_file(path, engine, context, Serving())
    whose = ""
    if isinstance(file.error, SeveralModels):
        whose = f", such as of {next(iter(file.error.problems.values()))}"
    elif file.resolved and file.resolved.assumed:
        whose = f", such as of {file.resolved.assumed}"
    shipped = "".join(f"; {words[:-1]}" for words in _shipped(engine, family, name, context))
    return f"{name}: {family.title}{whose}{shipped}"


def named_shape(finding: LogFinding, context: Context) -> Added:
    """The file of a fused-MoE layer of which a text gives E and N alone."""
    device, fix, cause = context.device(), list[str](), list[str]()
    if lacks := context.missing("any", device):
        return Added(fix=(lacks,))
    served = context.engine_of(finding)
    for engine in [served] if served else engine_names():
        name = _name_of(finding, engine, device.name if device else "", context)
        added = about(config_file(name, engine, context, Serving()), context)
        cause += [f"Its file would be {name}, as {ENGINES[engine]} spells it.", *added.cause]
        fix += [*([] if served else [f"If the server is {ENGINES[engine]}:"]), *added.fix]
    return Added(tuple(cause), tuple(fix))


def _name_of(finding: LogFinding, engine: str, device: str, context: Context) -> str:
    """The name of a layer's file; what the line does not say is as in the text's model."""
    experts, size = (finding.values[one].replace(",", "") for one in ("experts", "size"))
    said, block = (
        _DTYPE.search(finding.text) or ",device_name=" in finding.text,
        _BLOCK.search(finding.text),
    )
    dtype, shape = (
        said[1] if isinstance(said, re.Match) else "",
        (block[1], block[2]) if block else None,
    )
    model = find_preset(context.target()) if context.target() else None
    if model and not said and model.quantization != "none" and model.dtype:
        dtype, shape = model.dtype.value, model.block_shape
    name = f"E={experts},N={size},device_name={device}{f',dtype={dtype}' if dtype else ''}"
    comma = ", " if engine == "sglang" else ","
    return name + (f",block_shape=[{shape[0]}{comma}{shape[1]}].json" if shape else ".json")


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

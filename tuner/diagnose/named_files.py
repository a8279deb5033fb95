"""What config files are for whose names stand in a text, and the commands that make them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.devices.table import Device
from tuner.diagnose.added import Added
from tuner.diagnose.context import Context
from tuner.diagnose.files import (
    SCRIPTS,
    UNTUNED,
    about,
    commands_for,
    config_file,
    serving_of,
    why_not,
)
from tuner.diagnose.findings import LogFinding
from tuner.engines.config_files import misnamed
from tuner.engines.engine import engine_module, engine_names, supports
from tuner.engines.logs.facts import facts_of_line
from tuner.engines.logs.served import ENGINES, unmade
from tuner.errors import BadInput, SeveralModels
from tuner.families.check import not_among
from tuner.models.serving import Serving
from tuner.models.table import find_preset
from tuner.problems.points import folder_version
from tuner.problems.registry import Family, families
from tuner.targets import reader_of, resolve_target

_MOST = 8  # names in one line that are answered
_FIELD = re.compile(r"(\w+)=(\[[^\]]*\]|[^,]+)")
_SHAPE = re.compile(r"\bE=(\d{1,7})`?[,/] ?`?N=(\d{1,7})\b")
_DTYPE = re.compile(r"\b((?:fp8|int8)_w8a8|int8_w8a16|int4_w4a16)\b")
_BLOCK = re.compile(r"block_shape=\[(\d{1,6}), ?(\d{1,6})\]")
_NOT_FOUND = re.compile(r"Config file not found at\b")
_FOLDER = re.compile(r"triton_\d+_\d+_\d+")


def named_file(finding: LogFinding, context: Context) -> Added:
    """Each file that the line names: who reads it, its problem, and the commands that make it."""
    if finding.beside:
        return _several_files(finding.beside, context)
    added = _each(_paths(finding)[:_MOST], context.engine_of(finding), context)
    if not _NOT_FOUND.search(finding.text):
        return added
    lacks = (
        "The line says that the server did not find it, so it launches the kernel with default "
        "constants: it works, and may be slower than it could be."
    )
    return replace(added, cause=(lacks, *added.cause))


def unnamed_file(finding: LogFinding, context: Context) -> Added:
    """The command that tunes the model that the text names, for a file without a name."""
    engine, device = context.engine_of(finding), context.device()
    served = context.target() and context.tp
    if device and not served and (names := _names_of(finding, engine, device, context)):
        return _each(names[:_MOST], engine, context)
    kernels = {"block_gemm": "dense_gemm"}
    wanted = kernels.get(finding.message.name.partition("_config")[0], "fused_moe")
    family = next(family for family in families() if family.name == wanted)
    if engine and not supports(engine, wanted):
        return Added()
    if lacks := context.missing(engine or "any", device, model=True):
        return Added(fix=(lacks if engine else context.missing("", device, model=True),))
    model = context.target()
    if model and (why := why_not(family, engine, context)):
        return Added(fix=(f"The text names the model {context.model}, and {why}.",))
    copy = "" if model else ": copy its config.json to this folder"
    fix = [f"The text names the model {context.model}{copy}:"]
    for one in [engine] if engine else [name for name in engine_names() if supports(name, wanted)]:
        fix += [] if engine else [f"If the server is {ENGINES[one]}:"]
        fix += commands_for(family, one, context, device)
    return Added(fix=tuple(fix))


def lacks_field(finding: LogFinding, context: Context) -> Added:
    """The command that tunes the model, if it was the engine's tuning script that stopped."""
    if not any(script in one.path for one in finding.frames for script in SCRIPTS.values()):
        return Added()
    cause = (
        "The engine's tuning script does not know the model's architecture: it reads a field that "
        "configs of other architectures have. A newer script may know it; `tuner tune` needs none."
    )
    return replace(unnamed_file(finding, context), cause=(cause,), instead=True, denies=True)


def _names_of(finding: LogFinding, engine: str, device: Device, context: Context) -> list[str]:
    """The names of files of which a text gives E and N alone, as the engines spell them."""
    return list(
        dict.fromkeys(
            _name_of(match, one, device, context)
            for match in _SHAPE.finditer(finding.around or finding.text)
            for one in ([engine] if engine else engine_names())
        )
    )


def _paths(finding: LogFinding) -> list[str]:
    """The paths in a line, of each name one."""
    matches = finding.form.pattern.finditer(finding.text)
    return [*{one[0].rpartition("/")[2]: one[0] for one in matches}.values()]


def _each(paths: Sequence[str], served: str, context: Context) -> Added:
    added = {path: _named(path, served, context) for path in paths}
    heads = {path: [f"{path.rpartition('/')[2]}:"] if len(paths) > 1 else [] for path in paths}
    return Added(
        tuple(dict.fromkeys(line for one in added.values() for line in one.cause)),
        tuple(line for path, one in added.items() for line in (*heads[path], *one.fix)),
        {"files": [one.details for one in added.values()]},
    )


def _several_files(findings: Sequence[LogFinding], context: Context) -> Added:
    """What each of many files is for that a text names, such as a folder's listing."""
    rows: dict[str, list[str]] = {}
    for finding in findings:
        for path in _paths(finding):
            about_it = _row(path, context.engine_of(finding), context)
            rows.setdefault(about_it, []).append(path.rpartition("/")[2])
    ask = (
        "Give the line `Config file not found at` of the server, or the model: `tuner tune` makes "
        "the files that a model's layers ask for, from its name or its config.json.",
    )
    fix = unnamed_file(findings[0], context).fix if context.model else ask
    names = [name for these in rows.values() for name in these]
    lines = [f"{', '.join(these)}: {about_them}." for about_them, these in rows.items()]
    return Added(tuple(lines), fix, {"files": names})


def _row(path: str, served: str, context: Context) -> str:
    """What one file is for, and whether an engine ships it, in few words."""
    name, family, readers, why = _read(path, context)
    if family is None:
        return why.rstrip(".").replace(name, "it")
    engine = served if served in readers else readers[0]
    file = config_file(path, engine, context, Serving())
    whose = file.resolved.assumed if file.resolved else ""
    if isinstance(file.error, SeveralModels):
        whose = next(iter(file.error.problems.values()))
    shipped = [words.partition(": ")[0] for words in _shipped(engine, family, name, context)]
    such = [f"such as of {whose}"] if whose else []
    return "; ".join([", ".join([family.title, *such]), *(one.rstrip(".") for one in shipped)])


def _read(path: str, context: Context) -> tuple[str, Family | None, list[str], str]:
    """A file's name, its family and the engines that look for it; or no family, and why."""
    name = path.rpartition("/")[2]
    if why := context.unsupported(facts_of_line(name).get("device")) or unmade(name):
        return name, None, [], why
    if why := misnamed(name):
        return name, None, [], f"{why[0].upper()}{why[1:]}."
    try:
        family = reader_of(path)
    except BadInput:
        return name, None, [], f"Nothing here makes {name}: {UNTUNED}."
    readers = _readers(path, name, family) if family else []
    why = "" if readers else f"Neither sglang nor vLLM looks for {name}."
    if family is None:
        why = f"Nothing here makes {name}: no kernel that this tuner tunes has a file named so."
    return name, family if readers else None, readers, why


def _name_of(match: re.Match[str], engine: str, device: Device, context: Context) -> str:
    """The name of a layer's file; what the line does not say is as in the text's model."""
    line = match.string[match.start() :].partition("\n")[0]
    said, block = _DTYPE.search(line), _BLOCK.search(line)
    dtype, shape = said[1] if said else "", (block[1], block[2]) if block else None
    target = "" if context.hints.model else context.target()
    model = find_preset(target) if target else None
    if model and model.quantization != "none" and model.dtype and ",device_name=" not in line:
        dtype = dtype or model.dtype.value
        shape = shape or (model.block_shape if dtype == model.dtype.value else None)
    if ",device_name=" not in line:
        dtype = dtype or context.weights()
    name = (
        f"E={match[1]},N={match[2]},device_name={device.name}{f',dtype={dtype}' if dtype else ''}"
    )
    comma = ", " if engine == "sglang" else ","
    return name + (f",block_shape=[{shape[0]}{comma}{shape[1]}].json" if shape else ".json")


def _named(path: str, served: str, context: Context) -> Added:
    """One file; `served` is the engine of the text, if it is known."""
    name, family, readers, why = _read(path, context)
    details: dict[str, Any] = {"file": name, "engines": readers, "fields": _fields(name, path)}
    if family is None:
        return Added((why,), details=details)
    spell = " and ".join(ENGINES[one] for one in readers)
    cause = [f"It is the name of a config file for {family.title}, in the spelling of {spell}."]
    if folder := _FOLDER.search(path):
        cause.append(
            f"It lies in the folder of Triton {folder_version(folder[0])}: a server with another "
            "Triton looks into the folder of its own first."
        )
    fields = details["fields"]
    if fields.get("dtype") == "fp8_w8a8" and not fields.keys() & {
        "block_shape",
        "per_channel_quant",
    }:
        cause.append(
            "It is of fp8 weights without blocks. Servers of a checkpoint with blocks "
            "(weight_block_size in its config.json) ask for a name with block_shape instead."
        )
    if served and served not in readers:
        cause.append(f"{ENGINES[served]} looks for no file that is spelled so.")
    fix: list[str] = []
    device = context.device(facts_of_line(name).get("device"))
    asked = [served] if served in readers else readers
    for engine in asked:
        added = about(config_file(path, engine, context, Serving()), context)
        details |= added.details
        instead = [*_asked_instead(engine, family, name, context)] or _of_another_type(
            family, details["fields"], context
        )
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


def _of_another_type(family: Family, fields: Mapping[str, str], context: Context) -> list[str]:
    """A sentence, if the text's model is quantised, and the name is of 16-bit experts."""
    said = re.search(r"fp8|int8|w8a8", context.model, re.IGNORECASE)  # a preset may stand for more
    other = "dtype" in fields or "quantization" in context.facts.known
    if family.name != "fused_moe" or other or not (said and context.quantised()):
        return []
    model = find_preset(context.target())
    if not model.dtype:
        return []
    return [
        f"The name is of 16-bit experts, and {context.model} has {model.dtype.value}: its servers "
        "look for a name with that type, so they do not read this file. For the model, with --tp "
        "of the server's command if it is not 1:"
    ]


def _fields(name: str, path: str) -> dict[str, str]:
    """The fields of a name, and the Triton of its folder."""
    found = dict(_FIELD.findall(name.removesuffix(".json")))
    folder = _FOLDER.search(path)
    return found | ({"triton": folder_version(folder[0])} if folder else {})

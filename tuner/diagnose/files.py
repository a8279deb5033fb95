"""Which config file a server misses, its problem, and the commands that make it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.devices.table import Device
from tuner.diagnose.added import Added
from tuner.diagnose.context import Context
from tuner.diagnose.findings import Findings, LogFinding
from tuner.engines.dispatch import engine_runs, looks_late, seen_to_run, stops_at_fp8
from tuner.engines.engine import engine_names, release_of, supports
from tuner.engines.logs.facts import facts_of_line
from tuner.engines.logs.served import ENGINES, is_nameless, no_figures, not_tuned_for
from tuner.engines.settings import of_model, options_text
from tuner.errors import BadInput, NoSuchLayer, SeveralModels
from tuner.models.serving import Resolved, Serving
from tuner.models.table import named_in
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Problem
from tuner.problems.registry import Family, parse_problem
from tuner.shell import command_line
from tuner.targets import reader_of, resolve_target

UNTUNED = "its weights are of a type that this tuner does not tune"
NOTHING: Mapping[str, str] = {}
_FP8 = f"dtype={Dtype.FP8_W8A8.value}"
_ANSWER = "missing_file"  # of the messages that name a missing file
_DEVICE = re.compile(r".*device_name=(.*?)(?:,\w+=.*|(?:_down)?\.json)", re.DOTALL)
_DTYPE = re.compile(r",dtype=(\w+?)(?:_down)?(?:,|\.json)")
# What people write for a card's name; an object of Python begins with a small letter.
_PLACEHOLDER = re.compile(r"<[A-Z][A-Za-z_ ]*>|\{\w*\}|\*|X{3}|\.{3}")
# The engines' programs that tune fused-MoE files on the card itself.
SCRIPTS = {"sglang": "kernels/fused_moe_triton", "vllm": "kernels/benchmark_moe.py"}
_QUANTISED = re.compile(r"(?i)[-_](?:awq|gptq|fp8|nvfp4|mxfp4|int[48]|w[48]a(?:8|16)|[48]bit)\b")
# 0.10.2 and later were read: their fused_marlin_moe.py looks for no file.
_MARLIN_READS_NONE = (0, 10)
_OF_MARLIN = (
    "Marlin runs these experts by the text, and no Triton kernel. Releases before vLLM 0.10 looked "
    "for a file for it too, under the sizes of its packed weights, which are not the layer's, and "
    "took one constant from it. So the line names no file that tuning makes: ignore it."
)
_MARLIN = (
    "vLLM runs Marlin for most int4 experts (AWQ, GPTQ, compressed-tensors), which reads no file; "
    "its own int4 kernel (--quantization moe_wna16, or if Marlin cannot run) reads a file of this "
    "name. The server's log says which one runs."
)
_FIELDS = re.compile(r",(?=\s*[^\s\d])")  # not inside a block's shape
_FIELD = re.compile(r"\s*\w+(?:=(?:\[\d+,\s*\d+\]|[^\[\]{}`]+?)(?:_down)?(?:\.json)?)?")
_NAME_IT = (
    "Mend what tells the engine the card's name: NVML on NVIDIA's cards, the Python package amdsmi "
    "on AMD's, and the driver's devices in the container. The line then names a file."
)
_GIVE_WHOLE = "Give the line as the server wrote it."
_MOST_RANKS = 1 << 16
_MOST_MODELS = 9  # that one file's name fits, and that are told each with its command


@dataclass(frozen=True)
class MissingFile:
    """A config file that a server looked for or a text names, and what it is for."""

    path: str
    engine: str
    family: Family | None  # None: no family of this engine has such files
    resolved: Resolved | None = None
    error: BadInput | None = None  # why the problem is not known
    searched: bool = False  # whether a message says that the server looked for it
    stranger: str = ""  # a sentence on a model of the text that has no layer of this name

    @property
    def name(self) -> str:
        return self.path.replace("\\", "/").rpartition("/")[2].rstrip("']")


def names_missing_file(finding: LogFinding) -> bool:
    """Whether a message says which config file was not found."""
    return finding.message.answer == _ANSWER


def missing_files(findings: Findings, context: Context, serving: Serving) -> list[MissingFile]:
    """Every missing file of a log once; files of the same problem count as one."""
    found: dict[object, MissingFile] = {}
    for finding in findings.found:
        if names_missing_file(finding):
            path = finding.values.get("path", "")
            one = config_file(path, _engine(finding, context), context, serving)
            one = replace(one, searched=True)
            found.setdefault(one.resolved.problems if one.resolved else one.name, one)
    return list(found.values())


def missing_file(finding: LogFinding, context: Context) -> Added:
    """The file, and the command that tunes it; the families' own parsers read the path."""
    path = finding.values.get("path", "")
    missing = config_file(path, _engine(finding, context), context, Serving())
    named = _DEVICE.sub(r"\1", missing.name)
    if _PLACEHOLDER.search(named):
        device = context.device()
        if device is None:
            steps = (context.missing(missing.engine) or _GIVE_WHOLE,)
            return Added((f"The text leaves out the card: {named}.",), steps, instead=True)
        path = path.replace(named, device.name)
        missing = config_file(path, missing.engine, context, Serving())
    elif is_nameless(named):
        return Added((no_figures(named),), (_NAME_IT,), {"file": missing.name}, instead=True)
    if odd := [one for one in _FIELDS.split(missing.name) if not _FIELD.fullmatch(one)]:
        why = f"The missing file's name cannot be read: {odd[0]} is no part of one."
        return Added((why,), (_GIVE_WHOLE,), {"file": missing.name}, instead=True)
    added = about(replace(missing, searched=True), context)
    return replace(added, cause=(f"The missing file is {missing.name}.", *added.cause))


def about(file: MissingFile, context: Context) -> Added:
    """What the name of a config file says, and the commands that make it."""
    details: dict[str, Any] = {"file": file.name}
    resolved, family = file.resolved, file.family
    if family is None:
        return Added(
            fix=(f"Nothing here makes it: {UNTUNED}.",) if file.error else (), details=details
        )
    if other := context.unsupported(named := facts_of_line(file.name).get("device")):
        return Added(fix=(other,), details=details, instead=True)
    if not context.hints.device and (reason := not_tuned_for(named)):
        return Added(fix=(f"{no_figures(named)} {_made_by(file, reason)}",), details=details)
    if not family.flag and _by_marlin(file, context):
        return Added((_OF_MARLIN,), (), details, instead=True, denies=True)
    if not family.flag and (outside := context.facts.get("experts")):
        why = f"{outside} runs the experts of the text's server with kernels of its own"
        said = (f"{why}, which read no config files: ignore the line.",)
        return Added(said, (), details, instead=True, denies=True)
    card = context.device(named)
    if card and _FP8 in file.name and (stops := stops_at_fp8(file.engine, family.name, card)):
        return Added(fix=(f"No file is made for it: {stops}.",), details=details)
    strange = (file.stranger,) if file.stranger else ()
    if resolved is None:
        seen, words = _of_any(file, card, context)
        steps = _without_problem(file, context, seen)
        return Added((*strange, *words), tuple(steps), details)
    device = context.device(resolved.device_name or "")
    details |= {"problem": resolved.problems[0].spec(), "device": device.name if device else None}
    cause = [*strange, *(f"Read from it: {note}." for note in resolved.notes)]
    if not family.flag and "dtype=" not in file.name and _QUANTISED.search(context.model):
        cause.append(
            "The name has no type, so these experts have 16 bits, and the model's name says that "
            "its weights have fewer: most often they are those of its draft layer (MTP, NextN)."
        )
    seen = NOTHING
    if device and (context.version(file.engine) or not _only_before(file, context)):
        seen, words = _what_runs(file, resolved.problems, device, context)
        cause += words
    return Added(tuple(cause), tuple(_steps(file, resolved, context, seen)), details)


def _by_marlin(file: MissingFile, context: Context) -> bool:
    """Tell whether the line's release has a Marlin kernel that looked for Triton's files."""
    version = context.version("vllm")
    old = not version or release_of(version) < _MARLIN_READS_NONE
    return file.engine == "vllm" and old and bool(context.facts.get("marlin"))


def _made_by(file: MissingFile, reason: str) -> str:
    """Who makes a file for a card for which nothing is tuned here."""
    script = SCRIPTS.get(file.engine)
    if "is too old" in reason or not script or file.family is None or file.family.flag:
        return "No file is made for it."
    return f"No file is made here: {ENGINES[file.engine]}'s own benchmarks ({script}) make it."


def _only_before(file: MissingFile, context: Context) -> bool:
    """Whether only a release is known before which the server's was made."""
    old = file.resolved.older_than if file.resolved else None
    return bool(old or context.facts.get(f"{file.engine}_before"))


def _of_any(
    file: MissingFile, device: Device | None, context: Context
) -> tuple[Mapping[str, str], list[str]]:
    """`_what_runs` for a file whose name fits several models: they run the same kernel."""
    if not isinstance(file.error, SeveralModels) or _only_before(file, context) or not device:
        return NOTHING, []
    problem = parse_problem(next(iter(file.error.problems)))
    return _what_runs(file, [problem], device, context)


def _what_runs(
    file: MissingFile, problems: Sequence[Problem], device: Device, context: Context
) -> tuple[Mapping[str, str], list[str]]:
    """The settings that the search for a file shows, and sentences on what the server runs."""
    engine, version = file.engine, context.version(file.engine)
    flags = of_model(context.facts.settings, context.target())
    seen = seen_to_run(engine, version, problems, device, flags) if file.searched else NOTHING
    runs = engine_runs(engine, version, problems, device, {**flags, **seen})
    late = file.searched and looks_late(engine, version, problems)
    # What the line shows is more than the rules of a newer release say.
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


def _engine(finding: LogFinding, context: Context) -> str:
    return context.engine_of(finding) or "sglang"


def config_file(path: str, engine: str, context: Context, serving: Serving) -> MissingFile:
    """The file of that path, as an engine reads its name."""
    try:
        family = reader_of(path)
    except BadInput as error:  # a type of weights that no kernel here has
        return MissingFile(path, engine, None, error=error)
    if family is None or engine not in engine_names() or not supports(engine, family.name):
        return MissingFile(path, engine, None)
    asked = Serving(
        engine=engine,
        engine_version=context.version(engine) or serving.engine_version,
        device=serving.device,
        dtype=serving.dtype,
        options={**_sizes(context), **serving.options},
        model=context.model,
        ranks=_ranks(context),
    )
    resolve, stranger = family.module("models").of_line, ""
    for serving in (asked, replace(asked, model="", ranks=None)):
        try:
            return MissingFile(path, engine, family, resolve(path, serving), stranger=stranger)
        except SeveralModels as error:
            return MissingFile(path, engine, family, None, error, stranger=stranger)
        except BadInput as error:
            missing = MissingFile(path, engine, family, None, error, stranger=stranger)
        if not named_in(context.model) or not isinstance(missing.error, NoSuchLayer):
            break  # of a model of which nothing is known
        at = f" at tp={context.tp}" if context.tp else ""
        stranger = (
            f"No layer of {context.model}{at} asks for {missing.name}, by the rules that are known "
            "here: it is of another model, a draft model or another release, or of a server with "
            "other flags."
        )
    return missing


def _sizes(context: Context) -> dict[str, Any]:
    """The sizes of a layer that a text gives both in words, since names of files have neither."""
    names = ("hidden_size", "top_k")
    found = {name: int(value) for name in names if (value := context.facts.get(name))}
    return found if len(found) == len(names) else {}


def _ranks(context: Context) -> tuple[int, int] | None:
    """The least and the most ranks that share the experts; None if nothing tells them."""
    if int(context.facts.get("dp") or 0) > 1:
        return None  # engines may share experts among ranks of data parallelism too
    seen = int(context.facts.get("ranks") or 0)
    if context.tp >= max(1, seen):  # a smaller one is of another command in the text
        return context.tp, context.tp
    return (seen, _MOST_RANKS) if seen > 1 else None


def _without_problem(missing: MissingFile, context: Context, seen: Mapping[str, str]) -> list[str]:
    """What to do where the name of a file does not suffice."""
    device = context.device(facts_of_line(missing.name).get("device"))
    model = "" if missing.stranger else context.target()
    flag = missing.family.flag if missing.family and missing.family.flag else ""
    options = context.options(missing.engine, device, seen)
    steps = [f"The file's name does not suffice: {missing.error}." if missing.error else ""]
    if "int4" in missing.name and missing.engine == "vllm":
        untuned = (
            "int4_w4a16 in vLLM is not tuned by this program: its files help, and nothing here "
            "makes them; vLLM's benchmarks/kernels/benchmark_moe.py does."
        )
        return [untuned] if missing.searched else [untuned, _MARLIN]
    sure = (
        "The sure way is the model's config.json, which lies in the checkpoint's folder"
        if not model
        else f"The sure way is the model that the text names, {context.model}"
    )
    if lacks := context.missing(missing.engine, device):
        return [*steps, f"{sure}. {lacks}"]
    if isinstance(missing.error, SeveralModels) and len(missing.error.problems) <= _MOST_MODELS:
        return [*_older(missing.engine, context), *_of_several(missing.error, options)]
    if not context.tp or missing.stranger:
        words = command_line(*([flag] if flag else []), *options)
        return [
            *steps,
            f"{sure}: give it to `tuner tune` with {words} and --tp, the tensor-parallel size of "
            "the server's command.",
        ]
    if model and (why := why_not(missing.family, missing.engine, context)):
        return [*steps, f"{sure}, and {why}."]
    dtype = found[1] if (found := _DTYPE.search(missing.name)) else ""
    asked = commands_for(missing.family, missing.engine, context, device, seen, dtype)
    return [*steps, f"{sure}{'' if model else '; copy it to this folder'}:", *asked]


def commands_for(
    family: Family | None,
    engine: str,
    context: Context,
    device: Device | None = None,
    seen: Mapping[str, str] = NOTHING,
    named: str = "",
) -> list[str]:
    """The commands that tune and export the family of the text's model.

    `seen`: settings that messages show, besides those of the server's command. `named`: the type of
    weights in the name of a missing file.
    """
    flag = [family.flag] if family and family.flag else []
    served = context.serving(engine, family) if family else ["--tp", str(context.tp)]
    if named and "--dtype" not in served and not context.quantised():
        served += ["--dtype", named]
    options = context.options(engine, device, seen)
    tune = ("tune", context.target() or "config.json", *flag, *served, *options)
    return [_command(*tune), _command("export", *options)]


def _command(*words: str) -> str:
    return f"$ {command_line('tuner', *words)}"


def serving_of(
    family: Family | None, engine: str, context: Context, device: Device | None = None
) -> Serving:
    """How the text's server runs the kernels of a family; ep is of fused-MoE layers alone."""
    return Serving(
        engine or "sglang",
        context.version(engine) or None,
        device or context.device(),
        context.tp or 1,
        options={"ep": context.ep} if context.ep > 1 and family and not family.flag else {},
    )


def why_not(family: Family | None, engine: str, context: Context) -> str:
    """Why a family of the context's model cannot be tuned as it is served; "" if it can."""
    try:
        resolve_target(context.target(), serving_of(family, engine, context), family=family)
    except BadInput as error:
        return str(error).partition("; the model has")[0]
    return ""


def _older(engine: str, context: Context) -> list[str]:
    """The sentence about a path that only old releases have, if the text tells no version."""
    before = context.facts.get(f"{engine}_before")
    if not before or context.version(engine):
        return []
    return [
        f"The path is of a release before {engine} {before}, and newer ones look in another "
        f"folder: give the server's version too, --engine {engine}==VERSION, to each command. "
        f"`{command_line('pip', 'show', engine)}` says it."
    ]


def _of_several(error: SeveralModels, options: Sequence[str]) -> list[str]:
    """The commands for each problem that the file may be for."""
    steps = ["The file's name fits several models. Take the command of the one that is served:"]
    for spec, models in error.problems.items():
        steps += [f"{models}:", _command("tune", spec, *options)]
    return [
        *steps,
        "For another model, give `tuner tune` its config.json, which lies in the checkpoint's "
        "folder, and --tp of the server's command. Then:",
        _command("export", *options),
    ]


def _steps(
    missing: MissingFile, resolved: Resolved, context: Context, seen: Mapping[str, str]
) -> Sequence[str]:
    steps = []
    device = context.device(resolved.device_name or "")
    if resolved.device_name and device is None:
        spec, options = resolved.problems[0].spec(), context.options(missing.engine)
        words = command_line(*options)
        return [f"{no_figures(resolved.device_name)} Then tune {spec} with {words}."]
    if lacks := context.missing(missing.engine, device):
        return [lacks]
    if resolved.older_than:
        steps += _older(missing.engine, context)
    options = context.options(missing.engine, device, seen)
    if resolved.assumed:
        served = context.serving(missing.engine, missing.family) if missing.family else []
        known = context.tp and not missing.stranger
        tp = command_line(*served) if known else "--tp of the server's command"
        flag = missing.family.flag if missing.family and missing.family.flag else ""
        words = " ".join(filter(None, (flag, tp, command_line(*options))))
        steps += [
            "The sure way is the model's config.json, which lies in the checkpoint's folder: give "
            f"it to `tuner tune` with {words}.",
            f"If the model is {resolved.assumed}, this is the same:",
        ]
    return [
        *steps,
        _command("tune", resolved.problems[0].spec(), *options),
        _command("export", *options),
        "The second command prints the variable or the folder by which the server finds the file.",
    ]

"""Find the config files that a log names as missing, and write the commands that make them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.devices.table import Device
from tuner.diagnose.context import Context
from tuner.diagnose.findings import Findings, LogFinding
from tuner.engines.engine import engine_names, supports
from tuner.engines.logs.facts import facts_of_line
from tuner.engines.logs.served import no_figures
from tuner.errors import BadInput, NoSuchLayer, SeveralModels
from tuner.models.serving import Resolved, Serving
from tuner.models.table import named_in
from tuner.problems.registry import Family
from tuner.shell import command_line
from tuner.targets import reader_of, resolve_target

_ANSWER = "missing_file"  # of the messages that name a missing file
_MOST_RANKS = 1 << 16
_DTYPE = re.compile(r",dtype=(\w+?)(?:_down)?(?:,|\.json)")
_MARLIN = (
    "vLLM runs Marlin for most int4 experts (AWQ, GPTQ, compressed-tensors), which reads no file; "
    "its own int4 kernel (--quantization moe_wna16, or if Marlin cannot run) reads a file of this "
    "name. The server's log says which one runs."
)
_MOST_MODELS = 9  # that a file's name fits, and that are listed with a command each
NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True)
class MissingFile:
    """Describe a config file that a server looked for or a text names, and its problem."""

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
    """Say whether a message names the config file that was not found."""
    return finding.message.answer == _ANSWER


def missing_files(findings: Findings, context: Context, serving: Serving) -> list[MissingFile]:
    """List every missing file of a log once; files of the same problem count as a single file."""
    found: dict[object, MissingFile] = {}
    for finding in findings.found:
        if names_missing_file(finding):
            path = finding.values.get("path", "")
            one = config_file(path, engine_of(finding, context), context, serving)
            one = replace(one, searched=True)
            found.setdefault(one.resolved.problems if one.resolved else one.name, one)
    return list(found.values())


def engine_of(finding: LogFinding, context: Context) -> str:
    """Return the engine of a message about a file; sglang if nothing tells it."""
    return context.engine_of(finding) or "sglang"


def config_file(path: str, engine: str, context: Context, serving: Serving) -> MissingFile:
    """Return the file of that path, as an engine reads its name."""
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
        options=serving.options,
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
        converts = context.flags(engine).converts and not context.quantised()
        known = named_in(context.model) and not converts  # which may change a rank's sizes
        if not known or not isinstance(missing.error, NoSuchLayer):
            break
        at = f" at tp={context.tp}" if context.tp else ""
        stranger = (
            f"No layer of {context.model}{at} asks for {missing.name}, by the rules that are known "
            "here: it is of another model, a draft model or another release, or of a server with "
            "other flags."
        )
    return missing


def _ranks(context: Context) -> tuple[int, int] | None:
    """Return the least and the most ranks that share the experts; None if nothing tells them."""
    if int(context.facts.get("dp") or 0) > 1:
        return None  # engines may share experts among ranks of data parallelism too
    seen = int(context.facts.get("ranks") or 0)
    if context.tp >= max(1, seen):  # a smaller size is of another command in the text
        return context.tp, context.tp
    return (seen, _MOST_RANKS) if seen > 1 else None


def commands_for(
    family: Family | None,
    engine: str,
    context: Context,
    device: Device | None = None,
    seen: Mapping[str, str] = NOTHING,
    named: str = "",
) -> list[str]:
    """Return the commands that tune and export the family of the text's model.

    `seen`: settings that messages show, besides the settings of the server's command. `named`: the
    type of weights in the name of a missing file.
    """
    served = context.serving(engine, family) if family else ["--tp", str(context.tp)]
    if named and "--dtype" not in served and not context.quantised():
        served += ["--dtype", named]
    options = context.options(engine, device, seen)
    chosen = family.words if family else ()
    tune = ("tune", context.target() or "config.json", *chosen, *served, *options)
    return [_command(*tune), _command("export", *options)]


def _command(*words: str) -> str:
    return f"$ {command_line('tuner', *words)}"


def serving_of(
    family: Family | None, engine: str, context: Context, device: Device | None = None
) -> Serving:
    """Say how the text's server runs the kernels of a family; ep is of fused-MoE layers alone."""
    return Serving(
        engine or "sglang",
        context.version(engine) or None,
        device or context.device(),
        context.tp or 1,
        options={"ep": context.ep} if context.ep > 1 and family and not family.words else {},
    )


def why_not(family: Family | None, engine: str, context: Context) -> str:
    """Say why a family of the context's model cannot be tuned as it is served; "" if it can."""
    try:
        resolve_target(context.target(), serving_of(family, engine, context), family=family)
    except BadInput as error:
        return str(error).partition("; the model has")[0]
    return ""


def _older(engine: str, context: Context) -> list[str]:
    """Return a sentence on a path that only old releases have, if the text tells no version."""
    before = context.facts.get(f"{engine}_before")
    if not before or context.version(engine):
        return []
    return [
        f"The path is of a release before {engine} {before}, and newer releases look in another "
        f"folder: give the server's version too, --engine {engine}==VERSION, to each command. "
        f"`{command_line('pip', 'show', engine)}` says it."
    ]


def _of_several(error: SeveralModels, options: Sequence[str]) -> list[str]:
    """Return the commands for each problem that the file may be for."""
    steps = ["The file's name fits several models. Take the command of the served model:"]
    for spec, models in error.problems.items():
        steps += [f"{models}:", _command("tune", spec, *options)]
    return [
        *steps,
        "For another model, give `tuner tune` its config.json, which lies in the checkpoint's "
        "folder, and --tp of the server's command. Then:",
        _command("export", *options),
    ]


def steps_for(
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
        chosen = " ".join(missing.family.words) if missing.family else ""
        words = " ".join(filter(None, (chosen, tp, command_line(*options))))
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


def steps_without_problem(
    missing: MissingFile, context: Context, seen: Mapping[str, str]
) -> list[str]:
    """Return the steps if the name of a file does not suffice."""
    device = context.device(facts_of_line(missing.name).get("device"))
    model = "" if missing.stranger else context.target()
    chosen = missing.family.words if missing.family else ()
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
        words = command_line(*chosen, *options)
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

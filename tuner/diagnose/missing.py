"""Find the config files that a log names as missing, and the problems that they are for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tuner.diagnose.context import Context
from tuner.diagnose.findings import Findings, LogFinding
from tuner.engines.engine import engine_names, supports
from tuner.errors import BadInput, NoSuchLayer, SeveralModels
from tuner.jobs.targets import reader_of
from tuner.models.serving import Resolved, Serving
from tuner.models.table import named_in
from tuner.problems.registry import Family

_ANSWER = "missing_file"  # of the messages that name a missing file
_MOST_RANKS = 1 << 16


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
            one = config_file(path, engine_of(finding, context), context, serving)
            one = replace(one, searched=True)
            found.setdefault(one.resolved.problems if one.resolved else one.name, one)
    return list(found.values())


def engine_of(finding: LogFinding, context: Context) -> str:
    """Return the engine of a message about a file; sglang if nothing tells it."""
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
        options=serving.options,
        model=context.model,
        ranks=_ranks(context),
    )
    resolve, stranger = family.module("models").resolve, ""
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


def _ranks(context: Context) -> tuple[int, int] | None:
    """The least and the most ranks that share the experts; None if nothing tells them."""
    if int(context.facts.get("dp") or 0) > 1:
        return None  # engines may share experts among ranks of data parallelism too
    seen = int(context.facts.get("ranks") or 0)
    if context.tp >= max(1, seen):  # a smaller one is of another command in the text
        return context.tp, context.tp
    return (seen, _MOST_RANKS) if seen > 1 else None

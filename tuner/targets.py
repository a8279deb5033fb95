"""Resolve users' words (a model, a problem, a line of a log) to the problems to tune.

The command line, the API and the watch list all resolve their requests here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.engines.engine import names_model, parse_spec, supports
from tuner.engines.settings import read_flags, settings_kept, with_experts
from tuner.errors import (
    BadInput,
    BadProblem,
    IndivisibleShape,
    LacksLayers,
    MalformedCheckpoint,
    OptionsRefused,
    UnsupportedFamily,
    did_you_mean,
)
from tuner.models.model import Model
from tuner.models.serving import Note, Resolved, Serving
from tuner.models.table import find_model, model_or_none
from tuner.problems.points import UNKNOWN_SERVER, Problem, ServerSettings
from tuner.problems.registry import Family, families, find_family, parse_problem


@dataclass(frozen=True)
class Target:
    """A user's word: a problem, an engine's line about a config file, or a model.

    A model's config.json has been read, so users of a target need not read it again.
    """

    text: str  # as the user wrote it; of the bytes of a config.json, how messages call it
    family: Family | None = None  # of a problem, or the family that reads the line
    is_problem: bool = False
    model: Model | None = None  # None: a problem or a line


def is_url(text: str) -> bool:
    """Say whether a text can only be the address of a running server."""
    return text.startswith(("http://", "https://"))


def read_target(target: str | bytes, name: str = "config.json") -> Target:
    """Read a target's text, or the bytes of a config.json, which messages call `name`.

    A text is a problem's, an engine's warning line, a preset's name, or the path of a config.json
    or of its folder. Raises UnknownModel, MalformedCheckpoint, or BadProblem for a problem of an
    unknown kind.
    """
    if isinstance(target, bytes):
        return Target(name, model=find_model(target, name))
    if family := find_family(target):
        return Target(target, family, is_problem=True)
    if family := reader_of(target):
        return Target(target, family)
    return Target(target, model=find_model(target))


class LeftOut(Note):
    """A sentence that says which part of a model is left out, and why."""

    what: str
    why: str  # in the API's words
    unread: bool  # whether the model may have such layers, and what was read does not say it

    @classmethod
    def of(cls, what: str, error: BadInput) -> LeftOut:
        """Return the sentence about families that an error leaves out."""
        note = cls(f"left out {what}: {error.message}", cli=error.cli, api=error.api)
        note.what, note.why = what, error.in_api_words()
        note.unread = isinstance(error, MalformedCheckpoint)
        return note


def not_known(notes: Iterable[str]) -> list[str]:
    """Return the families, in words, of which a model may have problems that could not be read."""
    return [note.what for note in notes if isinstance(note, LeftOut) and note.unread]


ALL = "all"  # in place of families' names: all of them, whether or not servers read their files
FamilyNames = Sequence[str]  # names, or ALL; none: the families whose files servers read


def families_named(names: FamilyNames) -> Sequence[Family]:
    """Return the families of these names, all for ALL and for none. Raises BadInput."""
    known = {one.name: one for one in families()}
    for name in () if names == ALL else names:
        if name not in known:
            near = did_you_mean(name, known)
            raise BadInput(f"unknown family {name!r}{near}: name some of {', '.join(known)}")
    return [one for one in families() if names == ALL or not names or one.name in names]


def read_family_names(text: str) -> FamilyNames:
    """Read `all`, or names with commas between them; "" names none. Raises BadInput."""
    names = ALL if text == ALL else tuple(filter(None, map(str.strip, text.split(","))))
    families_named(names)
    return names


@dataclass(frozen=True)
class TuningTarget:
    """The problems of one family that a target stands for."""

    family: Family
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]  # sentences for the user
    is_model: bool  # False: a problem, whose sizes are sizes of one rank
    server: ServerSettings = UNKNOWN_SERVER  # the model's class and checkpoint


def resolve_target(
    target: str | bytes | Target,
    serving: Serving,
    *,
    family: Family | None = None,
    name: str = "config.json",
    given: Iterable[str] = (),
) -> TuningTarget:
    """Return the problems that `target` stands for; see `read_target`.

    `family` is the family that was asked for. `given` names the fields that were set. Raises
    OptionsRefused for a field that does not apply, and the errors of `read_target` and of the
    family's `models.problems`. If the model has no problem of the family, the message names the
    families of which it has some.
    """
    found = target if isinstance(target, Target) else read_target(target, name)
    chosen = family or found.family or families()[0]
    own = found.family if found.family and found.is_problem else chosen
    refuse_options([own], given, of_problem=found.is_problem)
    if found.is_problem and chosen is own:
        return TuningTarget(chosen, (parse_problem(found.text),), (), is_model=False)
    if found.model is None:
        return TuningTarget(chosen, *_of_line(chosen, found, serving), is_model=True)
    try:
        resolved = _problems(chosen, found.model, serving)
    except IndivisibleShape:
        raise
    except BadInput as error:
        _name_others(error, other_families(chosen, found.model, serving))
        raise
    server = server_of_model(found.model)
    notes = (*_not_served(server.architecture, serving), *resolved.notes)
    return TuningTarget(chosen, resolved.problems, notes, True, server)


def resolve_model(
    target: str | Target, serving: Serving, names: FamilyNames = (), given: Iterable[str] = ()
) -> list[TuningTarget]:
    """Return the problems of each of these families of a model; of a problem or a line, its own.

    `given` names the fields that were set. Raises as `resolve_all`, `resolve_target` and
    `families_named` do.
    """
    found = target if isinstance(target, Target) else read_target(target)
    among, given = families_named(names), list(given)
    if found.model is None:
        return [resolve_target(found, serving, given=given)]
    targets = resolve_all(found.model, serving, among)
    refuse_options([one.family for one in targets], given)
    return targets


def _of_line(
    family: Family, line: Target, serving: Serving
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """Return the problems of a family that a line names, and notes about them.

    Raises BadProblem for a line of another family, and for a problem.
    """
    assert line.family is not None
    models = family.module("models")
    resolved: Resolved | None = None
    if not line.is_problem and models.reads(line.text):
        resolved = models.of_line(line.text, serving)
    if resolved is None:
        other = line.family.title
        raise BadProblem(f"{line.text[:200]!r} names {other}, which has no {family.title}")
    return resolved.problems, resolved.notes


def server_of_model(model: Model | None) -> ServerSettings:
    """Return the settings of a server of a model, as far as the model says them."""
    return ServerSettings(model.architecture, model.stored_as) if model else UNKNOWN_SERVER


def all_settings(
    model: ServerSettings, engine: str, flags: Mapping[str, str], ep: int = 1
) -> dict[str, str]:
    """Return the settings of a model's server that is started with flags, on `ep` ranks of experts.

    `engine` is its name or its name and version. Raises BadInput.
    """
    name, _ = parse_spec(engine)
    return {**settings_kept(model), **with_experts(name, flags, ep)}


def as_flags_say(serving: Serving, settings: Mapping[str, str]) -> Serving:
    """Add the server's flags to a model's way of serving.

    Raises BadInput if the flags contradict it, or if a flag changes problems in a way that is not
    read.
    """
    said = read_flags(serving.engine, settings)
    if said.unread:
        raise BadInput(said.unread)
    tp, given = said.tp or serving.tp, dict(serving.options)
    options = said.on(tp)
    flags = {"tp": "--tp", **{o.name: o.flag for one in families() for o in one.shaping}}
    by_server = {"tp": tp, **options}
    by_options = {"tp": serving.tp, **given} if serving.tp != 1 else given
    for name in by_options.keys() & by_server.keys():
        if by_options[name] != by_server[name]:
            raise BadInput(
                f"{flags[name]} is {by_options[name]}, and the server's flags say "
                f"{by_server[name]}: leave one of them out"
            )
    dtype, options = serving.dtype or said.dtype, {**options, **given}
    return replace(serving, tp=tp, dtype=dtype, converts=said.converts, options=options)


def only_problem(target: TuningTarget) -> Problem:
    """Return the problem of a target that is one job. Raises BadInput, which names all, if it has
    more.
    """
    if len(target.problems) > 1:
        specs = " and ".join(problem.spec() for problem in target.problems)
        raise BadInput(
            f"this model has several problems, each a job of its own: name {specs}",
            api=", or queue all with POST /v1/jobs:model",
        )
    return target.problems[0]


def resolve_all(
    target: str | bytes | Model,
    serving: Serving,
    among: Sequence[Family] | None = None,
    *,
    name: str = "config.json",
) -> list[TuningTarget]:
    """Return the problems of each family of which a model has some; see `find_model` for its names.

    `among` are the families to look at (default: all). Notes say why a family is left out whose
    layers the model may have. Raises IndivisibleShape if tp does not divide a family's layers, and
    the reason of each such family if the model has no problem of any.
    """
    model = target if isinstance(target, Model) else find_model(target, name)
    found: list[TuningTarget] = []
    server = server_of_model(model)
    refused: list[tuple[Family, BadInput]] = []
    unread: list[tuple[Family, BadInput]] = []  # which the engine has no tuned kernels for anyway
    for family in among or families():
        try:
            resolved = _where_dtype_applies(family, model, serving)
        except IndivisibleShape:
            raise
        except BadInput as error:
            tuned = supports(serving.engine, family.name) or isinstance(error, UnsupportedFamily)
            (refused if tuned else unread).append((family, error))
        else:
            problems, notes = resolved.problems, resolved.notes
            found.append(TuningTarget(family, problems, notes, True, server))
    reasons: dict[str, tuple[BadInput, list[str]]] = {}
    refused = refused if found or refused else unread
    may_have = [one for one in refused if not isinstance(one[1], LacksLayers)]
    for family, refusal in may_have:
        reasons.setdefault(str(refusal), (refusal, []))[1].append(family.title)
    if not found:
        if len(reasons) < 2:
            raise (may_have or refused)[0][1]
        whys = (f"{listed(titles)}: {why}" for why, (_, titles) in reasons.items())
        raise BadProblem("\n- ".join(["nothing of it can be tuned:", *whys]))
    left_out = tuple(LeftOut.of(listed(titles), why) for why, titles in reasons.values())
    notes = (*_not_served(server.architecture, serving), *left_out, *found[0].notes)
    return [replace(found[0], notes=notes), *found[1:]]


def why_left_out(family: Family, model: Model, serving: Serving) -> str:
    """Say why a model has no problem of a family whose layers it may have; "" if it has
    a problem.
    """
    if not supports(serving.engine, family.name):
        return ""
    try:
        _where_dtype_applies(family, model, serving)
    except LacksLayers:
        return ""
    except BadInput as error:
        return str(error)
    return ""


def _not_served(architecture: str, serving: Serving) -> list[str]:
    """Return a sentence if the engine's release, which is on disk, does not know the
    model's class.
    """
    version = serving.engine_version
    if not version or not architecture or names_model(serving.engine, version, architecture):
        return []
    return [
        f"{serving.engine} {version} has no class {architecture} among its models: it refuses the "
        "model, or runs it by code of Transformers, which was not looked at here"
    ]


def other_families(family: Family, model: str | Model, serving: Serving) -> list[Family]:
    """Return the other families of which a model has problems, at this tp or at another."""
    return [one for one in families_of(model, serving) if one is not family]


def families_of(target: str | Model, serving: Serving | None = None) -> list[Family]:
    """Return the families of which a model has problems; see `find_model` for its names."""
    model = target if isinstance(target, Model) else model_or_none(target)
    return [one for one in families() if model and _has(one, model, serving or Serving())]


def with_options(found: Sequence[Family]) -> str:
    """Name families with the option that chooses them: "attention (--family attention)"."""
    return listed([f"{one.title} (--family {one.name})" for one in found])


def listed(names: Sequence[str]) -> str:
    """Write `a`, `a and b`, or `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _has(family: Family, model: Model, serving: Serving) -> bool:
    try:
        return bool(_where_dtype_applies(family, model, serving).problems)
    except IndivisibleShape:
        return True
    except BadInput:
        return False


def _name_others(error: BadInput, others: Sequence[Family]) -> None:
    """Add to an error the families that can be tuned instead."""
    if not others:
        return
    names = " and ".join(name for one in others for name in one.problems)
    error.add(
        cli=f"; the model has {with_options(others)}",
        api=f"; POST /v1/jobs:model queues its other problems: {names}",
        page=f"; queue its problems instead: {names}",
    )


def _where_dtype_applies(family: Family, model: Model, serving: Serving) -> Resolved:
    """Resolve as `_problems`, but drop a dtype of quantised weights that a family cannot have.

    Such a dtype is for weights of experts, so these keep it.
    """
    try:
        return _problems(family, model, serving)
    except IndivisibleShape:
        raise
    except BadInput:
        of_experts = any(option.name == "block_shape" for option in family.shaping)
        if serving.dtype is None or serving.dtype.weight_bits == 16 or of_experts:
            raise
        return _problems(family, model, replace(serving, dtype=None))


def _problems(family: Family, model: Model, serving: Serving) -> Resolved:
    resolved: Resolved = family.module("models").problems(model, serving)
    return resolved


def refuse_options(
    own: Sequence[Family], given: Iterable[str], *, of_problem: bool = False
) -> None:
    """Raise OptionsRefused, which names all given fields that apply to none of some families.

    With `of_problem`, the fields that say how a model is served do not apply either, because a
    problem's sizes are sizes of one rank.
    """
    known = {option.name for family in own for option in family.options}
    others = [(one.title, o) for one in families() for o in one.options if o.name not in known]
    flags = {"tp": "--tp", "dtype": "--dtype"}
    flags |= {option.name: option.flag for family in own for option in family.shaping}
    titles: dict[str, list[str]] = {}
    for title, option in others:
        titles.setdefault(option.name, []).append(title)
    refused = {name: f"for {listed(some)}" for name, some in titles.items()}
    if of_problem:
        refused |= dict.fromkeys(flags, "for a model, and this is one problem")
    reasons = {name: refused[name] for name in given if name in refused}
    if reasons:
        raise OptionsRefused(reasons, flags | {option.name: option.flag for _, option in others})


def reader_of(text: str) -> Family | None:
    """Return the family that can read the text, an engine's log line or a file's name,
    if any can.
    """
    return next((one for one in families() if one.module("models").reads(text)), None)

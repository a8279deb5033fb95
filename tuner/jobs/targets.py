"""From what users name (a model, a problem, a line of a log) to the problems to tune.

The command line, the API and the watch list all resolve their requests here.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from tuner.devices.table import find_device
from tuner.engines.engine import find_engine, names_model, parse_spec, supports
from tuner.engines.launch import read_flags, with_experts
from tuner.engines.settings import settings_kept, settings_to_keep
from tuner.errors import (
    BadInput,
    BadProblem,
    IndivisibleShape,
    LacksLayers,
    OptionsRefused,
    UnknownEngine,
    UnknownModel,
    UnsupportedFamily,
)
from tuner.jobs.job import JobRequest
from tuner.models.serving import Resolved, Serving
from tuner.models.table import class_of, presets, stored_as
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Problem
from tuner.problems.registry import Family, families, family_of, find_family, parse_problem
from tuner.problems.server import UNKNOWN_SERVER, ServerSettings
from tuner.tuning.request import refuse_unmeasured, refuse_unpredicted


@dataclass(frozen=True)
class TuningTarget:
    """The problems of one family that a text or a config.json stands for."""

    family: Family
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]  # sentences for the user
    is_model: bool  # False: a problem, whose sizes are those of one rank
    server: ServerSettings = UNKNOWN_SERVER  # the model's class and checkpoint


def resolve_target(
    target: str | bytes,
    serving: Serving,
    *,
    family: Family | None = None,
    name: str = "config.json",
    given: Iterable[str] = (),
) -> TuningTarget:
    """The problems that `target` stands for.

    It is a problem's text, an engine's warning line, a preset, the path of a config.json, or the
    bytes of a config.json, which messages call `name`. `family` is the family that was asked for.
    `given` names the fields that were set. Raises OptionsRefused for a field that does not apply,
    and whatever the family's `models.resolve` raises. Where the model has no problem of the family,
    the message names the families of which it has some.
    """
    of_problem = find_family(target) if isinstance(target, str) else None
    reader = reader_of(target) if isinstance(target, str) and not of_problem else None
    chosen = of_problem or family or reader or families()[0]
    refuse_options(chosen, given, of_problem=of_problem is not None)
    if of_problem is not None and isinstance(target, str) and family in (None, of_problem):
        return TuningTarget(of_problem, (parse_problem(target),), (), is_model=False)
    chosen = family or chosen
    try:
        resolved = _resolve(chosen, target, serving, name)
    except (UnknownModel, IndivisibleShape):
        raise
    except BadInput as error:
        if of_problem is None and reader is None:
            _name_others(error, other_families(chosen, target, serving, name=name))
        raise
    server = UNKNOWN_SERVER if reader else server_of_model(target)
    notes = (*_not_served(server.architecture, serving), *resolved.notes)
    return TuningTarget(chosen, resolved.problems, notes, True, server)


def server_of_model(target: str | bytes) -> ServerSettings:
    """The settings of a server of a model, as far as the model says them."""
    return ServerSettings(class_of(target), stored_as(target))


def server_for(
    model: ServerSettings, problem: Problem, engine: str, flags: Mapping[str, str], ep: int = 1
) -> ServerSettings:
    """The settings of a server of a model that is started with flags, on `ep` ranks of experts.

    `engine` is its name or its name and version. Raises BadInput.
    """
    name, _ = parse_spec(engine)
    settings = {**settings_kept(model), **with_experts(name, flags, ep)}
    return settings_to_keep(name, problem, settings)


def as_flags_say(serving: Serving, settings: Mapping[str, str]) -> Serving:
    """How a model is served, with what the server's flags say of it too.

    Raises BadInput if the flags contradict it, or if one changes problems in a way that is not
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
    return replace(serving, tp=tp, dtype=serving.dtype or said.dtype, options={**options, **given})


def only_problem(target: TuningTarget) -> Problem:
    """The problem of a target that is one job. Raises BadInput, which names all, if it has more."""
    if len(target.problems) > 1:
        specs = " and ".join(problem.spec() for problem in target.problems)
        raise BadInput(f"this model has several problems, each a job of its own: name {specs}")
    return target.problems[0]


def resolve_all(
    target: str | bytes,
    serving: Serving,
    among: Sequence[Family] | None = None,
    *,
    name: str = "config.json",
) -> list[TuningTarget]:
    """The problems of each family of which a model has some; see `resolve_target`.

    `among` are the families to look at, all without it. Notes say why a family is left out whose
    layers the model may have. Raises IndivisibleShape if tp does not divide the layers of one, and
    the reason of each such family if the model has no problem of any.
    """
    found: list[TuningTarget] = []
    server = server_of_model(target)
    refused: list[tuple[Family, BadInput]] = []
    unread: list[tuple[Family, BadInput]] = []  # which the engine has no tuned kernels for anyway
    for family in among or families():
        try:
            resolved = _where_dtype_applies(family, target, serving, name)
        except IndivisibleShape:
            raise
        except BadInput as error:
            tuned = supports(serving.engine, family.name) or isinstance(error, UnsupportedFamily)
            (refused if tuned else unread).append((family, error))
        else:
            problems, notes = resolved.problems, resolved.notes
            found.append(TuningTarget(family, problems, notes, True, server))
    reasons: dict[str, list[str]] = {}
    refused = refused if found or refused else unread
    may_have = [one for one in refused if not isinstance(one[1], LacksLayers)]
    for family, refusal in may_have:
        reasons.setdefault(str(refusal), []).append(family.title)
    if not found:
        if len(reasons) < 2:
            raise (may_have or refused)[0][1]
        whys = (f"{listed(titles)}: {why}" for why, titles in reasons.items())
        raise BadProblem("\n- ".join(["nothing of it can be tuned:", *whys]))
    left_out = tuple(f"left out {listed(titles)}: {why}" for why, titles in reasons.items())
    notes = (*_not_served(server.architecture, serving), *left_out, *found[0].notes)
    return [replace(found[0], notes=notes), *found[1:]]


def why_left_out(family: Family, target: str, serving: Serving) -> str:
    """Return why a model has no problem of a family whose layers it may have; "" if it has one."""
    if not supports(serving.engine, family.name):
        return ""
    try:
        _where_dtype_applies(family, target, serving, target)
    except LacksLayers:
        return ""
    except BadInput as error:
        return str(error)
    return ""


def _not_served(architecture: str, serving: Serving) -> list[str]:
    """A sentence if the engine's release, which is on disk, does not know the model's class."""
    version = serving.engine_version
    if not version or not architecture or names_model(serving.engine, version, architecture):
        return []
    return [
        f"{serving.engine} {version} has no class {architecture} among its models: it refuses the "
        "model, or runs it by code of Transformers, which was not looked at here"
    ]


def other_families(
    family: Family, target: str | bytes, serving: Serving, *, name: str = "config.json"
) -> list[Family]:
    """The families but this one of which a model has problems, at this tp or at another."""
    return [one for one in families() if one is not family and _has(one, target, serving, name)]


def families_of(target: str, serving: Serving | None = None) -> list[Family]:
    """The families of which a model has problems."""
    return [one for one in families() if _has(one, target, serving or Serving(), target)]


def in_words(found: Sequence[Family]) -> str:
    """Families with the flags that choose them: "attention (--attention)"."""
    return listed([f"{one.title} ({one.flag or 'without a flag'})" for one in found])


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, or `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _has(family: Family, target: str | bytes, serving: Serving, name: str) -> bool:
    try:
        return bool(_where_dtype_applies(family, target, serving, name).problems)
    except IndivisibleShape:
        return True
    except BadInput:
        return False


def _name_others(error: BadInput, others: Sequence[Family]) -> None:
    """Add to an error what can be tuned instead."""
    if not others:
        return
    names = " and ".join(name for one in others for name in one.problems)
    error.add(
        cli=f"; the model has {in_words(others)}",
        api=f"; post its problems instead: {names}",
        page=f"; queue its problems instead: {names}",
    )


def _where_dtype_applies(
    family: Family, target: str | bytes, serving: Serving, name: str
) -> Resolved:
    """Like `_resolve`, but a dtype of quantised weights is dropped if a family has no weights
    that it could be for. Such a dtype is for weights of experts, so these keep it.
    """
    try:
        return _resolve(family, target, serving, name)
    except IndivisibleShape:
        raise
    except BadInput:
        of_experts = any(option.name == "block_shape" for option in family.shaping)
        if serving.dtype is None or serving.dtype.weight_bits == 16 or of_experts:
            raise
        return _resolve(family, target, replace(serving, dtype=None), name)


def _resolve(family: Family, target: str | bytes, serving: Serving, name: str) -> Resolved:
    module = family.module("models")
    resolved: Resolved = (
        module.resolve(target, serving)
        if isinstance(target, str)
        else module.resolve_config(target, name, serving)
    )
    return resolved


def refuse_options(family: Family, given: Iterable[str], *, of_problem: bool = False) -> None:
    """Raises OptionsRefused, which names all given fields that do not apply to a family.

    With `of_problem`, the fields that say how a model is served do not apply either, because a
    problem's sizes are those of one rank.
    """
    known = {option.name for option in family.options}
    others = [(one.title, o) for one in families() for o in one.options if o.name not in known]
    flags = {"tp": "--tp", "dtype": "--dtype"} | {o.name: o.flag for o in family.shaping}
    titles: dict[str, list[str]] = {}
    for title, option in others:
        titles.setdefault(option.name, []).append(title)
    refused = {name: f"for {listed(some)}" for name, some in titles.items()}
    if of_problem:
        refused |= dict.fromkeys(flags, "for a model, and this is one problem")
    reasons = {name: refused[name] for name in given if name in refused}
    if reasons:
        raise OptionsRefused(reasons, flags | {option.name: option.flag for _, option in others})


def engine_version_here(spec: str) -> str | None:
    """The version that `spec` means on this machine, at most a minute old.

    Without that engine here, the version that `spec` names, or None.
    """
    return _engine_version_here(spec, int(time.monotonic() // 60))


@lru_cache(maxsize=64)
def _engine_version_here(spec: str, minute: int) -> str | None:
    try:
        return find_engine(spec).version
    except UnknownEngine:
        return spec.partition("==")[2].strip() or None


def reader_of(text: str) -> Family | None:
    """The family that can read the text, an engine's log line or a file's name, if there is one."""
    return next((one for one in families() if one.module("models").reads(text)), None)


_TP = (1, 2, 4, 8, 16, 32)
_DTYPES = (None, Dtype.INT8_W8A8)  # the model's own, and the one that fleets of older cards use


@dataclass(frozen=True)
class Served:
    """A model of the table, and at which tensor-parallel sizes it has a problem."""

    model: str
    dtype: Dtype | None  # None: the model's own
    tp: tuple[int, ...]


def models_of(problem: Problem) -> Sequence[str]:
    """The models with this problem, each with its tensor-parallel sizes: `deepseek-r1 TP 8, 16`.

    An empty list says that no model of the table has it in a usual way of serving. The first call
    for a family takes up to a second.
    """
    return tuple(sorted(_words(one) for one in served_as(problem)))


def with_sizes(model: str, problem: Problem) -> str:
    """A model with the tensor-parallel sizes at which it has a problem: `deepseek-r1 TP 8`."""
    name = next((one.name for one in presets() if model in (one.name, *one.aliases)), "")
    sizes = sorted({tp for one in served_as(problem) if one.model == name for tp in one.tp})
    return f"{model} TP {', '.join(map(str, sizes))}" if sizes else model


def served_as(problem: Problem) -> Sequence[Served]:
    """The usual ways of serving a model of the table that have this problem."""
    return _models(family_of(problem).name).get(problem, ())


@cache
def _models(family: str) -> Mapping[Problem, Sequence[Served]]:
    chosen = next(one for one in families() if one.name == family)
    sizes: dict[Problem, dict[tuple[str, Dtype | None], list[int]]] = defaultdict(dict)
    for model, tp, dtype, options in itertools.product(presets(), _TP, _DTYPES, _choices(chosen)):
        for problem in _problems(chosen, model.name, Serving(tp=tp, dtype=dtype, options=options)):
            # A dtype of quantised weights changes nothing for attention.
            known = dtype if dtype and (model.name, None) not in sizes[problem] else None
            found = sizes[problem].setdefault((model.name, known), [])
            if tp not in found:
                found.append(tp)
    return {
        problem: [Served(*who, tuple(some)) for who, some in of.items()]
        for problem, of in sizes.items()
    }


def _choices(family: Family) -> Sequence[Mapping[str, Any]]:
    """Ways of serving that a server's flags decide."""
    flags = [option.name for option in family.shaping if option.kind is bool]
    every = itertools.product((True, False), repeat=len(flags))
    return [dict(zip(flags, values, strict=True)) for values in every]


def _problems(family: Family, model: str, serving: Serving) -> Sequence[Problem]:
    try:
        resolved: Resolved = family.module("models").resolve(model, serving)
    except BadInput:
        return ()
    return resolved.problems


def _words(served: Served) -> str:
    name = f"{served.model} {served.dtype.value}" if served.dtype else served.model
    return f"{name} TP {', '.join(map(str, served.tp))}"


_GIB = 1 << 30


def refuse_undoable(request: JobRequest) -> None:
    """Refuse a job that no worker can do.

    Raises BadInput if it asks for times that nothing predicts or measures, and BadProblem if the
    smallest launch that it selects needs more memory than the card has.
    """
    refuse_unpredicted(request.problem, request.source.kind)
    refuse_unmeasured(find_device(request.device), request.source.kind)
    if not request.points:
        return  # a replay of all that its recording has
    held_bytes = family_of(request.problem).held_bytes
    point = min(request.points, key=lambda one: held_bytes(request.problem, one))
    needed = held_bytes(request.problem, point)
    device = find_device(request.device)
    if needed > device.memory_bytes:
        raise BadProblem(
            f"{request.problem.spec()} does not fit on {device.name}: its smallest launch, "
            f"{point}, needs {needed / _GIB:,.1f} GiB, and the card has "
            f"{device.memory_bytes // _GIB} GiB"
        )

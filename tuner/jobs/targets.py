"""From what users name (a model, a problem, a line of a log) to the problems to tune.

The command line, the API and the watch list all resolve their requests here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tuner.engines.engine import find_engine
from tuner.errors import BadInput, IndivisibleShape, OptionsRefused, UnknownEngine, UnknownModel
from tuner.models.serving import Resolved, Serving
from tuner.models.table import class_of
from tuner.problems.points import Problem
from tuner.problems.registry import Family, families, find_family, parse_problem


@dataclass(frozen=True)
class TuningTarget:
    """The problems of one family that a text or a config.json stands for."""

    family: Family
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]  # sentences for the user
    is_model: bool  # False: a problem, whose sizes are those of one rank
    architecture: str = ""  # the class of the model; "": not known


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
    architecture = "" if reader else class_of(target)
    return TuningTarget(chosen, resolved.problems, resolved.notes, True, architecture)


def resolve_all(
    target: str | bytes,
    serving: Serving,
    among: Sequence[Family] | None = None,
    *,
    name: str = "config.json",
) -> list[TuningTarget]:
    """The problems of each family of which a model has some; see `resolve_target`.

    `among` are the families to look at, all without it. Notes say why a family is left out. Raises
    IndivisibleShape if tp does not divide the layers of one, and the first family's error if the
    model has no problem of any.
    """
    found: list[TuningTarget] = []
    architecture = class_of(target)
    refused: list[tuple[Family, BadInput]] = []
    for family in among or families():
        try:
            resolved = _where_dtype_applies(family, target, serving, name)
        except IndivisibleShape:
            raise
        except BadInput as error:
            refused.append((family, error))
        else:
            problems, notes = resolved.problems, resolved.notes
            found.append(TuningTarget(family, problems, notes, True, architecture))
    if not found:
        raise refused[0][1]
    left_out = tuple(f"left out {family.title}: {error}" for family, error in refused)
    return [replace(found[0], notes=(*left_out, *found[0].notes)), *found[1:]]


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
    return _listed([f"{one.title} ({one.flag or 'without a flag'})" for one in found])


def _listed(names: Sequence[str]) -> str:
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
    """Like `_resolve`, but a dtype of quantised weights is dropped where a family has no weights
    that it could be for.
    """
    try:
        return _resolve(family, target, serving, name)
    except IndivisibleShape:
        raise
    except BadInput:
        if serving.dtype is None or serving.dtype.weight_bits == 16:
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
    refused = {name: f"for {_listed(some)}" for name, some in titles.items()}
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

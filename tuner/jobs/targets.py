"""From what users name (a model, a problem, a line of a log) to the problems to tune.

The command line, the API and the watch list all resolve their requests here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from tuner.engines.engine import find_engine
from tuner.errors import OptionsRefused, UnknownEngine
from tuner.models.serving import Resolved, Serving
from tuner.problems.points import Problem
from tuner.problems.registry import Family, families, find_family, parse_problem


@dataclass(frozen=True)
class TuningTarget:
    """The problems of one family that a text or a config.json stands for."""

    family: Family
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]  # sentences for the user
    is_model: bool  # False: a problem, whose sizes are those of one rank


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
    and whatever the family's `models.resolve` raises.
    """
    if isinstance(target, bytes):
        chosen = family or families()[0]
        refuse_options(chosen, given)
        resolved: Resolved = chosen.module("models").resolve_config(target, name, serving)
        return TuningTarget(chosen, resolved.problems, resolved.notes, is_model=True)
    of_problem = find_family(target)
    chosen = of_problem or family or reader_of(target) or families()[0]
    refuse_options(chosen, given, of_problem=of_problem is not None)
    if of_problem is not None and family in (None, of_problem):
        return TuningTarget(of_problem, (parse_problem(target),), (), is_model=False)
    resolved = (family or chosen).module("models").resolve(target, serving)
    return TuningTarget(chosen, resolved.problems, resolved.notes, is_model=True)


def refuse_options(family: Family, given: Iterable[str], *, of_problem: bool = False) -> None:
    """Raises OptionsRefused, which names all given fields that do not apply to a family.

    With `of_problem`, the fields that say how a model is served do not apply either, because a
    problem's sizes are those of one rank.
    """
    known = {option.name for option in family.options}
    others = [(one.title, o) for one in families() for o in one.options if o.name not in known]
    flags = {"tp": "--tp", "dtype": "--dtype"} | {o.name: o.flag for o in family.shaping}
    refused = {option.name: f"for {title}" for title, option in others}
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

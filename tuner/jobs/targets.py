"""What people name (a model, a problem, a line of a log) -> the problems to tune.

The command line, the API and the watch list all resolve their requests here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tuner.errors import OptionsRefused
from tuner.models.serving import Resolved, Serving
from tuner.problems.points import Problem
from tuner.problems.registry import Family, families, find_family, parse_problem


@dataclass(frozen=True)
class Target:
    """The problems of one family that a text, or a config.json, stands for."""

    family: Family
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]  # sentences for the user
    is_model: bool  # otherwise its sizes are one rank's already


def resolve_target(
    target: str | bytes,
    serving: Serving,
    *,
    family: Family | None = None,
    name: str = "config.json",
    given: Iterable[str] = (),
) -> Target:
    """The problems that `target` stands for: a problem's text, an engine's warning line, a preset,
    the path of a config.json, or (bytes) a config.json itself, which `name` is for messages.

    `family` is the one that was asked for; `given` the fields that were set of those that only
    some families, or only models, have. Raises OptionsRefused for one that does not apply, and
    whatever the family's `models.resolve` raises.
    """
    if isinstance(target, bytes):
        chosen = family or families()[0]
        refuse_options(chosen, given)
        resolved: Resolved = chosen.module("models").resolve_config(target, name, serving)
        return Target(chosen, resolved.problems, resolved.notes, is_model=True)
    of_problem = find_family(target)
    chosen = of_problem or family or reader_of(target) or families()[0]
    refuse_options(chosen, given, of_problem=of_problem is not None)
    if of_problem is not None and family in (None, of_problem):
        return Target(of_problem, (parse_problem(target),), (), is_model=False)
    resolved = (family or chosen).module("models").resolve(target, serving)
    return Target(chosen, resolved.problems, resolved.notes, is_model=True)


def refuse_options(family: Family, given: Iterable[str], *, of_problem: bool = False) -> None:
    """Raises OptionsRefused, which names them all, for fields that do not apply to a family, or
    (`of_problem`) not to a problem whose sizes are one rank's already.
    """
    known = {option.name for option in family.options}
    others = {
        option.name: (other.title, option.flag)
        for other in families()
        for option in other.options
        if option.name not in known
    }
    flags = {"tp": "--tp", "dtype": "--dtype"} | {o.name: o.flag for o in family.shaping}
    reasons = {}  # in the order of `given`
    for name in given:
        if name in others:
            reasons[name] = f"for {others[name][0]}"
        elif of_problem and name in flags:
            reasons[name] = "for a model, and this is one problem"
    if reasons:
        raise OptionsRefused(reasons, flags | {name: flag for name, (_, flag) in others.items()})


def reader_of(text: str) -> Family | None:
    """The family one of whose engine's lines or files the text names."""
    return next((one for one in families() if one.module("models").reads(text)), None)

"""The only list of kernel families. A family is a package; its module `family` says what it is.

Entries are names of packages, imported when somebody first asks, so that a light process stays
light. What else a family has is loaded by the module that uses it: `Family.module`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol

from tuner.errors import BadInput, BadProblem, did_you_mean
from tuner.problems.points import Part, Point, Problem

_PACKAGES = ["tuner.families.fused_moe", "tuner.families.attention"]


class Selection(Protocol):
    """Which points of a problem a request asks for. Each family has a class of its own."""

    @property
    def given(self) -> bool:
        """Whether sizes were named; otherwise they are the recording's, or the family's own."""
        ...

    def points(self, problem: Problem) -> frozenset[Point]:
        """What is to be tuned, with the family's own sizes where none were named."""
        ...

    def as_json(self) -> dict[str, Any]:
        """The fields of a stored request; `Family.read_selection` reads them back."""
        ...


@dataclass(frozen=True)
class Option:
    """One choice that requests of a family have beside the common ones."""

    name: str  # the field in JSON, e.g. "batch_sizes"
    flag: str  # at the command line, e.g. "--batch-sizes"; "--yes/--no" for a flag with two names
    kind: type  # of the command line's value: str, int or bool
    help: str
    parse: Callable[[Any], Any] = lambda value: value  # the command line's value -> the field's


@dataclass(frozen=True)
class Family:
    """What light processes know of a family: its names, its texts, its requests."""

    name: str  # its package's last name
    title: str  # for messages: "a fused-MoE layer"
    flag: str | None  # asks at the command line for a model's problems of it; None: no need to ask
    problems: tuple[str, ...]  # what the texts of its problems begin with
    parse: Callable[[str], Problem]
    parts: type[Part]
    shaping: tuple[Option, ...]  # how a model becomes problems
    selecting: tuple[Option, ...]  # which points are tuned: what `read_selection` reads
    searching: tuple[Option, ...]  # which configurations are tried
    read_selection: Callable[[Problem, Mapping[str, Any]], Selection]
    package: str
    # Whether entries of one environment count together whatever runs made them. Otherwise only what
    # one run published at once was chosen together.
    joins_runs: bool = False
    # Whether winners for the second of two unequal problems serve who names the first, by a model.
    alike: Callable[[Problem, Problem], bool] = lambda wanted, stored: False

    def module(self, name: str) -> ModuleType:
        """One of the modules that every family has; docs/architecture.md lists them."""
        return import_module(f"{self.package}.{name}")

    @property
    def options(self) -> tuple[Option, ...]:
        return (*self.shaping, *self.selecting, *self.searching)


def register(package: str) -> None:
    """Add a family that lies outside this list; twice is once."""
    if package not in _PACKAGES:
        _PACKAGES.append(package)
        forget_what_was_read()


def forget_what_was_read() -> None:
    """Read the list anew when it is next asked for."""
    for cached in (_known, parts, _parts_by_name, parse_problem):
        cached.cache_clear()


def families() -> Sequence[Family]:
    """Every family, the one that is tuned unless another is named first."""
    return _known()


def family_of(problem: Problem) -> Family:
    """The family of a problem."""
    return family_named(problem.family)


def family_named(name: str) -> Family:
    """The family that has problems of that name. Raises BadProblem, which names the nearest."""
    for family in families():
        if name in family.problems:
            return family
    raise BadProblem(f"unknown kind of problem {name!r}{did_you_mean(name, problem_names())}")


def problem_names() -> list[str]:
    """What a problem's text may begin with."""
    return [name for family in families() for name in family.problems]


def find_family(text: str) -> Family | None:
    """The family of the problem that `text` is; None where it is no problem's text.

    Raises BadProblem for a problem of no known kind.
    """
    name = text.partition(":")[0]
    if name in problem_names() or re.fullmatch(r"\w+:\w+=\S*", text):
        return family_named(name)
    return None


@lru_cache(maxsize=1024)  # a store has many rows of each
def parse_problem(text: str) -> Problem:
    """Read a problem's text, e.g. `fused_moe:E=256,N=64,K=7168,top_k=8,dtype=bfloat16`.

    Raises BadProblem, which names the nearest kind or field.
    """
    return family_named(text.partition(":")[0]).parse(text)


@cache
def parts() -> tuple[Part, ...]:
    """All parts of all families, each family's in the order of their launch."""
    return tuple(part for family in families() for part in family.parts)


def read_part(text: str) -> Part:
    """The part of that name. Raises BadInput, which names the nearest."""
    found = _parts_by_name().get(text)
    if found is None:
        raise BadInput(f"unknown part {text!r}{did_you_mean(text, list(_parts_by_name()))}")
    return found


@cache
def _known() -> tuple[Family, ...]:
    found = tuple(import_module(f"{package}.family").FAMILY for package in _PACKAGES)
    names = [part.value for family in found for part in family.parts]
    assert len(names) == len(set(names)), f"two families have a part of one name: {names}"
    return found


@cache
def _parts_by_name() -> Mapping[str, Part]:
    return {part.value: part for part in parts()}

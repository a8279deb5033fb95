"""Keep the only list of kernel families. A family is a package with a module `family`.

The list names packages, which are imported on first use, so that light processes stay light. Other
modules of a family are loaded through `Family.module`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Protocol

from tuner.errors import BadInput, BadProblem, did_you_mean, one_of
from tuner.problems.options import Option
from tuner.problems.points import ChartPosition, Part, Point, Problem

_PACKAGES = [
    "tuner.families.fused_moe",
    "tuner.families.attention",
    "tuner.families.dense_gemm",
    "tuner.families.scans.chunk_scan",
    "tuner.families.scans.gated_delta",
]


class Selection(Protocol):
    """The points of a problem that a request asks for. Each family implements this."""

    @property
    def given(self) -> bool:
        """Say whether the request names sizes; if not, the recording's or the family's are used."""
        ...

    def points(self, problem: Problem) -> frozenset[Point]:
        """Return the points to tune, at the family's default sizes if the request names none."""
        ...

    def as_json(self) -> dict[str, Any]:
        """Return the fields of a stored request; `Family.read_selection` reads them back."""
        ...


@dataclass(frozen=True)
class Family:
    """The part of a family that light processes use: its names, problem texts and requests."""

    name: str  # the last part of its package's name
    title: str  # for messages: "a fused-MoE layer"
    problems: tuple[str, ...]  # the names at the start of its problems' texts
    example: str  # a problem's text, with ".." for numbers
    parse: Callable[[str], Problem]
    parts: type[Part]
    shaping: tuple[Option, ...]  # how a model becomes problems
    selecting: tuple[Option, ...]  # which points are tuned; read by `read_selection`
    searching: tuple[Option, ...]  # which configurations are tried
    read_selection: Callable[[Problem, Mapping[str, Any]], Selection]
    # The fields that `read_selection` reads as these points, perhaps with other parts of a size.
    fields_of: Callable[[Collection[Point]], Mapping[str, Any]]
    place: Callable[[Any, Point], ChartPosition]  # the chart position of a problem's point
    # least_us(problem, point, device): microseconds that no launch can be faster than. No torch.
    least_us: Callable[[Any, Point, Any], float]
    held_bytes: Callable[[Any, Point], int]  # of the card's memory that no launch needs less than
    package: str
    shared: str = ""  # a package with the modules that families of one kind have in common
    predicts: bool = True  # whether times of its kernels are predicted
    # Whether entries of one environment may be combined even when different runs made them. If
    # not, only the entries that one run published belong together.
    joins_runs: bool = False
    # Seconds for which a search on a GPU waits for the compiler, if they are many: most kernels are
    # compiled while others are measured.
    wait_s: Callable[[Any], float] = lambda problem: 0.0
    # Whether winners stored for the second problem also serve a model that has the first problem.
    alike: Callable[[Problem, Problem], bool] = lambda wanted, stored: False

    def selection_of(self, problem: Problem, points: Collection[Point]) -> Selection:
        """Return the selection that names these points. Raises BadInput for impossible points."""
        return self.read_selection(problem, self.fields_of(points))

    def module(self, name: str) -> ModuleType:
        """Import a module of the family; docs/architecture.md lists them. Raises ImportError."""
        return import_module(self._place(name) or f"{self.package}.{name}")

    def optional(self, name: str) -> ModuleType | None:
        """Import a module that a family may lack, such as `check`."""
        place = self._place(name)
        return import_module(place) if place else None

    def _place(self, name: str) -> str:
        """Return the module's full name, "" if there is none. The family's own package
        goes first.
        """
        places = (f"{package}.{name}" for package in (self.package, self.shared) if package)
        return next((place for place in places if find_spec(place)), "")

    @property
    def words(self) -> tuple[str, ...]:
        """Return the words of a command line that choose the family; none for the first family."""
        return () if self is families()[0] else ("--family", self.name)

    @property
    def options(self) -> tuple[Option, ...]:
        return (*self.shaping, *self.selecting, *self.searching)


def register(package: str) -> None:
    """Add a family that is not in this list. Adding it twice has no effect."""
    if package not in _PACKAGES:
        _PACKAGES.append(package)
        forget_what_was_read()


def names_below(package: str) -> tuple[str, ...]:
    """Return the names of the families whose packages lie in one package. None is imported."""
    split = (one.rpartition(".") for one in _PACKAGES)
    return tuple(name for parent, _, name in split if parent == package)


def problem_texts() -> str:
    """Say how problems are written: an example of each family."""
    return " or ".join(family.example for family in families())


def forget_what_was_read() -> None:
    """Read the list anew when it is next used."""
    for cached in (_known, parts, _parts_by_name, parse_problem):
        cached.cache_clear()


def families() -> Sequence[Family]:
    """Return every family; the first is tuned unless a request names another."""
    return _known()


def family_of(problem: Problem) -> Family:
    """Return the family of a problem."""
    return family_named(problem.family)


def family_named(name: str) -> Family:
    """Return the family whose problems have that name. Raises BadProblem, which names
    the nearest.
    """
    for family in families():
        if name in family.problems:
            return family
    raise BadProblem(f"unknown kind of problem {name!r}{one_of(name, problem_names())}")


def problem_names() -> list[str]:
    """Return the names that a problem's text may start with."""
    return [name for family in families() for name in family.problems]


def is_problem(text: str) -> bool:
    """Say whether a text begins as a problem's does; it may still be wrong."""
    return text.partition(":")[0] in problem_names()


def find_family(text: str) -> Family | None:
    """Return the family of a problem's text; None if `text` is not a problem.

    Raises BadProblem if it looks like a problem of an unknown kind.
    """
    name = text.partition(":")[0]
    if is_problem(text) or re.fullmatch(r"\w+:\w+=\S*", text):
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
    """Return all parts of all families, in the order of launch within a family."""
    return tuple(part for family in families() for part in family.parts)


def read_part(text: str) -> Part:
    """Return the part of that name. Raises BadInput, which names the nearest."""
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

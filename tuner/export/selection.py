"""Which problems' winners go into an export, and the refusal of two problems for one file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tuner.errors import ExportRefused, did_you_mean
from tuner.problems.points import Problem
from tuner.problems.records import Winner
from tuner.problems.registry import family_of


def select(winners: Sequence[Winner], wanted: Sequence[Problem]) -> list[Winner]:
    """The winners for the wanted problems.

    A problem without winners stands for all stored problems that its family calls alike. Raises
    ExportRefused where no stored problem matches, and names the nearest one.
    """
    stored = {winner.problem for winner in winners}
    chosen = {problem for problem in stored if any(_names(one, problem, stored) for one in wanted)}
    if not chosen:
        specs = [problem.spec() for problem in stored]
        near = did_you_mean(wanted[0].spec(), specs)
        raise ExportRefused(f"the store has no winners for {wanted[0].spec()}{near}")
    return [winner for winner in winners if winner.problem in chosen]


def refuse_shared_files(files: Iterable[tuple[Path, Problem]]) -> None:
    """Raises ExportRefused where two problems would be written to the same file."""
    seen: dict[Path, str] = {}
    for path, problem in files:
        first = seen.setdefault(path, problem.spec())
        if first != problem.spec():
            raise ExportRefused(
                f"{first} and {problem.spec()} both ask for {path.name}: choose one of them with ",
                cli="--problem SPEC or --model NAME",
                api="problem=SPEC",
            )


def _names(wanted: Problem, problem: Problem, stored: set[Problem]) -> bool:
    if wanted in stored or wanted.family != problem.family:
        return wanted == problem
    return family_of(problem).alike(wanted, problem)

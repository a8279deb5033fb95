"""Which problems' winners go into an export, and the refusal of two problems for one file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from tuner.errors import ExportRefused, did_you_mean
from tuner.families.attention.problem import ENGINE_KV_SPLITS, Attention, Phase
from tuner.families.fused_moe.problem import Dtype
from tuner.problems.text import Problem
from tuner.store import Winner


def select(winners: Sequence[Winner], wanted: Sequence[Problem]) -> list[Winner]:
    """The winners for the wanted problems.

    An attention problem without winners stands for all stored problems of its shape, whatever
    their dtype, page size and KV splits. Raises ExportRefused, which names the nearest stored
    problem, where there is none.
    """
    stored = {winner.problem for winner in winners}
    chosen = {problem for problem in stored if any(_names(one, problem, stored) for one in wanted)}
    if not chosen:
        specs = [problem.spec() for problem in stored]
        near = did_you_mean(wanted[0].spec(), specs)
        raise ExportRefused(f"the store has no winners for {wanted[0].spec()}{near}")
    return [winner for winner in winners if winner.problem in chosen]


def refuse_shared_files(files: Iterable[tuple[Path, Problem]]) -> None:
    """Raises ExportRefused where two problems would be written to one file."""
    seen: dict[Path, str] = {}
    for path, problem in files:
        first = seen.setdefault(path, problem.spec())
        if first != problem.spec():
            raise ExportRefused(
                f"{first} and {problem.spec()} both ask for {path.name}: choose one of them with "
                "--problem SPEC or --model NAME"
            )


def _names(wanted: Problem, problem: Problem, stored: set[Problem]) -> bool:
    if wanted in stored or not isinstance(wanted, Attention) or not isinstance(problem, Attention):
        return wanted == problem
    return _shape(wanted) == _shape(problem)


def _shape(problem: Attention) -> Attention:
    splits = ENGINE_KV_SPLITS if problem.phase is Phase.DECODE else problem.kv_splits
    return replace(problem, dtype=Dtype.BFLOAT16, page_size=1, kv_splits=splits)

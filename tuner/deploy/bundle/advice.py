"""What a bundle holds of the advice for the cluster's servers, and what it says of the rest."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tuner.engines.dispatch import options_text
from tuner.errors import ExportRefused
from tuner.export.advice import Advice, Verdict
from tuner.problems.points import Problem
from tuner.problems.records import Winner


def advised_winners(
    advice: Sequence[Advice], usable: Sequence[Winner], named: Collection[Problem]
) -> list[Winner]:
    """The winners whose files the cluster's servers read with the flags that they have.

    Raises ExportRefused where there are winners and none of them is advised, and where one of the
    `named` problems is not.
    """
    chosen = [w for one in advice if one.verdict is Verdict.FILES for w in one.winners]
    others = [one for one in advice if one.verdict is not Verdict.FILES]
    refused = [one for one in others if one.problem in named]
    if refused or (usable and not chosen):
        raise ExportRefused("; ".join(advice_notes(refused or others)))
    return chosen


def advice_notes(advice: Sequence[Advice]) -> list[str]:
    """A note for each problem that is left alone. A bundle never sets a server's backend."""
    return [
        f"leave it: {one.problem.spec()}: {one.reason}"
        if one.verdict is Verdict.LEAVE
        else f"{one.problem.spec()}: with {options_text(one.flags)} in engine.flags the servers "
        f"would read tuned files: {one.reason}. Add it and bundle again"
        for one in advice
        if one.verdict is not Verdict.FILES
    ]

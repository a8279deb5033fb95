"""Write the notes of a bundle, and choose its advised files.

A bundle never sets a server's backend or KV splits: the cluster file does, or else sglang chooses.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tuner.bindings.sglang.attention.export import AttentionFileExport
from tuner.engines.engine import Engine
from tuner.engines.settings import options_text
from tuner.errors import ExportRefused
from tuner.export.advice import Advice, Verdict
from tuner.export.choice import loadable
from tuner.export.delivery import ExportFile
from tuner.export.selection import left_out_lines
from tuner.problems.points import Problem
from tuner.problems.results import Winner


def advised_files(advice: Sequence[Advice], named: Collection[Problem]) -> list[Advice]:
    """Return the advice on problems whose files the cluster's servers read with their present
    flags.

    There may be none: a cluster is launched although nothing was found faster. Raises ExportRefused
    if one of the `named` problems is not advised.
    """
    chosen = [one for one in advice if one.verdict is Verdict.FILES]
    others = [one for one in advice if one.verdict is not Verdict.FILES]
    refused = [one for one in others if one.problem in named]
    if refused:
        raise ExportRefused("; ".join(advice_notes(refused)))
    return chosen


def advice_notes(advice: Sequence[Advice]) -> list[str]:
    """Return a note for each reason to leave problems alone, with the problems that it holds for.

    A bundle never sets a server's backend.
    """
    by_reason: dict[tuple[str, str], list[str]] = {}
    for one in advice:
        if one.verdict is Verdict.LEAVE:
            note = ("leave it: ", one.reason)
        elif one.verdict is Verdict.FLAGS:
            reason = f"with {options_text(one.flags)} in engine.flags the servers would read tuned "
            note = ("", f"{reason}files: {one.reason}. Add it and bundle again")
        else:
            continue
        by_reason.setdefault(note, []).append(one.problem.spec())
    return [f"{first}{' '.join(specs)}: {why}" for (first, why), specs in by_reason.items()]


def usable_winners(winners: Sequence[Winner], engine: Engine) -> tuple[list[Winner], list[str]]:
    """Return (the winners that servers can load, notes about the others).

    Raises ExportRefused if no winner is left.
    """
    kept, left_out = loadable(winners, engine)
    return kept, left_out_lines(left_out)


def attention_notes(exported: Sequence[ExportFile]) -> list[str]:
    """Return notes about the attention files for the operator, a sentence each."""
    if not any(isinstance(file, AttentionFileExport) for file in exported):
        return []
    return [
        "tuned attention needs engine-tuner installed in the serving environment: sglang finds "
        "the plugin there"
    ]

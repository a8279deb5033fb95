"""What a bundle says and holds beside the config files: advice and attention.

A bundle never sets a server's backend or KV splits: the cluster file does, or else sglang chooses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from tuner.bindings.sglang.attention.export import AttentionFileExport
from tuner.bindings.sglang.attention.kv_splits import KV_SPLITS_FLAG
from tuner.bindings.sglang.attention.server_flags import advised_flags
from tuner.deploy.cluster import Cluster
from tuner.engines.engine import Engine
from tuner.engines.settings import options_text
from tuner.errors import ExportRefused
from tuner.export.advice import Advice, Verdict
from tuner.export.delivery import PlannedFile
from tuner.export.export import loadable
from tuner.export.selection import left_out_lines
from tuner.families.attention.problem import ENGINE_KV_SPLITS
from tuner.problems.points import Problem
from tuner.problems.results import Winner


def advised_files(
    advice: Sequence[Advice], usable: Sequence[Winner], named: Collection[Problem]
) -> list[Advice]:
    """The advice on problems whose files the cluster's servers read with the flags that they have.

    Raises ExportRefused where there are winners and none of them is advised, and where one of the
    `named` problems is not.
    """
    chosen = [one for one in advice if one.verdict is Verdict.FILES]
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


def usable_winners(winners: Sequence[Winner], engine: Engine) -> tuple[list[Winner], list[str]]:
    """(the winners that servers can load, notes about the others).

    Raises ExportRefused where no winner is left.
    """
    kept, left_out = loadable(winners, engine)
    return kept, left_out_lines(left_out)


def attention_notes(exported: Sequence[PlannedFile], cluster: Cluster) -> list[str]:
    """Notes about the attention files for the operator, one sentence each."""
    files = [file for file in exported if isinstance(file, AttentionFileExport)]
    if not files:
        return []
    notes = [
        "tuned attention needs engine-tuner installed in the serving environment: sglang finds "
        "the plugin there"
    ]
    return [*notes, *_splits_notes(files, cluster)]


def _splits_notes(files: Sequence[AttentionFileExport], cluster: Cluster) -> Iterator[str]:
    flag = _flag(cluster, KV_SPLITS_FLAG)
    told = flag or str(ENGINE_KV_SPLITS)
    for advice in advised_flags(files):
        wanted = advice.flags.get(KV_SPLITS_FLAG)
        if wanted is not None and str(wanted) != told:
            yield f"engine.flags should hold {KV_SPLITS_FLAG} {wanted}, for {advice.problem.spec()}"
    if flag and any(file.problem.chooses_splits for file in files):
        yield f"engine.flags hold {KV_SPLITS_FLAG} {flag}: the files choose no more KV splits"
    decode = [f.problem for f in files if f.problem.kv_splits]
    splits = {str(problem.kv_splits) for problem in decode if not problem.shares_kv}
    if flag and splits and flag not in splits:
        yield f"engine.flags hold {KV_SPLITS_FLAG} {flag}, and no decode file is for as many"


def _flag(cluster: Cluster, name: str) -> str | None:
    """The value of `--flag value` or `--flag=value`; the last occurrence counts."""
    flags = cluster.engine.flags
    found = None
    for word, following in zip(flags, [*flags, ""][1:], strict=True):
        if word == name:
            found = following
        elif word.startswith(f"{name}="):
            found = word.partition("=")[2]
    return found or None

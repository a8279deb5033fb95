"""Check entries that another machine says it measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tuner.measure.workbench import Workbench
from tuner.problems.points import TRITON, Candidate
from tuner.problems.results import WINNING, Entry, Status
from tuner.tuning.request import KnownBefore, PreparedRun
from tuner.tuning.run import compile_all
from tuner.tuning.tune import FixedStrategy


def doubts(prepared: PreparedRun, entries: Sequence[Entry], workbench: Workbench) -> Iterator[str]:
    """Say why entries are not believed; yield nothing if each entry compiles as it claims, fits the
    device and has the engine's real configurations beside it.
    """
    goal = prepared.goal(KnownBefore())
    own = goal.incumbents
    listed = {(point.part, config) for point, some in goal.listed.items() for config in some}
    for entry in entries:
        if entry.status not in WINNING or entry.status is Status.PREDICTED:
            yield f"{entry.point}: it was not measured: {entry.status.value}"
        elif entry.status is Status.OK and not (entry.median_us or 0) > 0:
            yield f"{entry.point}: it has no time"
        here = own.get(entry.point, {})
        for name, incumbent in entry.incumbents.items():
            chosen = name == "default" and (entry.point.part, incumbent.config) in listed
            if incumbent.backend == TRITON and not chosen and incumbent.config != here.get(name):
                yield f"{entry.point}: the engine here has another {name} configuration"
    at = {Candidate(entry.point, entry.config): entry for entry in entries}
    for candidate, compiled in compile_all(prepared, workbench, list(at)).items():
        said = at[candidate].compiled.shared_bytes
        if not compiled.ok:
            yield f"{candidate.point}: {compiled.detail or compiled.status.value}"
        elif said not in (None, compiled.shared_bytes):
            yield (
                f"{candidate.point}: it has {said} bytes of shared memory, and its configuration "
                f"compiles to {compiled.shared_bytes}"
            )


def measured_again(prepared: PreparedRun, entries: Sequence[Entry]) -> PreparedRun:
    """Return the run that measures the entries beside the engine's configurations, without a
    search.
    """
    claimed = {entry.point: entry.config for entry in entries if entry.point in prepared.points}
    return replace(
        prepared,
        goal=lambda known: prepared.goal(replace(known, previous=claimed)),
        strategy=lambda _: FixedStrategy([]),
    )

"""Select the problems whose winners go into an export, and list the problems that are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from tuner.devices.table import Device
from tuner.engines.engine import Engine
from tuner.errors import ExportRefused, did_you_mean
from tuner.problems.points import Problem
from tuner.problems.registry import family_of
from tuner.problems.results import Compiled, Incumbent, Status, Winner, is_shipped
from tuner.shell import command_line
from tuner.tuning.gains import reference

_WHOLLY = "only predicted: measure it, or allow predicted entries"
_PARTLY = (
    "only predicted at {}, where the engine's own entries stay: measure them, or allow predicted "
    "entries"
)


@dataclass(frozen=True)
class LeftOut:
    """A stored problem that an export does not hold, or not at all of its sizes."""

    problem: Problem
    why: str

    def as_json(self) -> dict[str, str]:
        return {"problem": self.problem.spec(), "why": self.why}


def left_out_lines(left_out: Iterable[LeftOut]) -> list[str]:
    """Return a line for each reason, with the problems that it holds for."""
    by_reason: dict[str, list[str]] = {}
    for one in left_out:
        by_reason.setdefault(one.why, []).append(one.problem.spec())
    return [f"left out ({why}): {' '.join(specs)}" for why, specs in by_reason.items()]


def select(
    winners: Sequence[Winner],
    wanted: Sequence[Problem],
    device: Device,
    engine: Engine,
    *,
    typed: bool = True,
) -> list[Winner]:
    """Return the winners of a device and an engine for the wanted problems.

    A problem without winners stands for all stored problems that its family calls alike. Raises
    ExportRefused if no stored problem matches, and names the nearest problem if a user `typed` the
    first problem.
    """
    chosen = winners_of(winners, wanted)
    if not chosen:
        spec = wanted[0].spec()
        near = did_you_mean(spec, [winner.problem.spec() for winner in winners]) if typed else ""
        raise no_winners(device, engine, spec, near=near)
    return chosen


def no_winners(
    device: Device,
    engine: Engine,
    spec: str = "",
    *,
    first: Sequence[str] = (),
    near: str = "",
    or_else: str = "",
) -> ExportRefused:
    """Return the error that a store has no winners, for one problem if `spec` is given.

    It names the command of the words `first`, or the command that tunes the problem. `or_else` is
    for the command line alone.
    """
    place = ("--device", device.name, "--engine", f"{engine.name}=={engine.version}")
    command = command_line("tuner", *(first or ("tune", spec or "MODEL", *place)))
    of = f"{spec} on " if spec else ""
    return ExportRefused(
        f"the store has no winners for {of}{device.name} with {engine.name} {engine.version}: ",
        cli=f"run `{command}` first{near}{or_else}",
        api=f"post a job for the device {device.name} first{near}",
        page=f"queue a job for the device {device.name} first{near}",
    )


def winners_of(winners: Sequence[Winner], wanted: Collection[Problem]) -> list[Winner]:
    """Return the winners for the wanted problems, as `select` finds them; there may be none."""
    chosen = stored_for(wanted, {winner.problem for winner in winners})
    return [winner for winner in winners if winner.problem in chosen]


def stored_for(wanted: Iterable[Problem], stored: Collection[Problem]) -> set[Problem]:
    """Return the stored problems that the wanted problems stand for; see `select`."""
    return {one for problem in wanted for one in stored if _names(problem, one, stored)}


def with_shipped(winners: Sequence[Winner]) -> list[Winner]:
    """Return the winners, with a predicted entry that equals the engine's shipped entry marked as
    INCUMBENT.

    The engine's makers measured such an entry, and nothing was predicted to replace it.
    """
    others = {
        (winner.problem, winner.entry.point.size)
        for winner in winners
        if winner.entry.status is not Status.PREDICTED or not is_shipped(winner.entry)
    }
    return [
        winner
        if (winner.problem, winner.entry.point.size) in others
        else replace(winner, entry=replace(winner.entry, status=Status.INCUMBENT, median_us=None))
        for winner in winners
    ]


def leave_out_predicted(
    winners: Sequence[Winner], named: Iterable[Problem] = ()
) -> tuple[list[Winner], list[LeftOut]]:
    """Return the winners without predicted winners, and the left-out problems.

    If a measured problem has a predicted winner, it is replaced by the winner that counts without
    predictions, or by the engine's own entry: a file holds every size. Raises ExportRefused if
    nothing measured is left, or nothing measured of the problems that one of `named` stands for.
    """
    stored = Counter(winner.problem for winner in winners)
    predicted = Counter(w.problem for w in winners if w.entry.status is Status.PREDICTED)
    measured = {winner.problem for winner in winners if winner.entry.status is Status.OK}
    wholly = predicted.keys() - measured
    if chosen := wholly_named(named, stored, wholly):
        raise _only_predicted(chosen, stored, predicted)
    if wholly and wholly == stored.keys():
        raise _only_predicted(wholly, stored, predicted)
    sizes = {
        (winner.problem, winner.entry.point.size): None  # a dictionary keeps their order
        for winner in winners
        if winner.entry.status is Status.PREDICTED
    }
    left_out = [
        LeftOut(problem, _why(problem in wholly, [size for one, size in sizes if one == problem]))
        for problem in sorted(predicted, key=lambda problem: problem.spec())
    ]
    kept = [_unpredicted(winner) for winner in winners if winner.problem not in wholly]
    return [winner for winner in kept if winner is not None], left_out


def _unpredicted(winner: Winner) -> Winner | None:
    """Return the winner that counts without predictions; None if it is not known."""
    if winner.status is not Status.PREDICTED:
        return winner
    if winner.unpredicted:
        return winner.unpredicted
    own = reference(winner.entry)
    if own.incumbent is None or own.incumbent.cannot_run:
        return None
    stays = as_it_runs(winner, f"not measured: the {own.name} configuration stands")
    return replace(stays, entry=replace(stays.entry, incumbents={}))


def as_it_runs(winner: Winner, reason: str, own: Incumbent | None = None) -> Winner:
    """Return the winner with the configuration that servers run without this program: `own`, or the
    known configuration.
    """
    own = own or reference(winner.entry).incumbent
    assert own is not None
    entry = replace(
        winner.entry,
        config=own.config,
        status=Status.INCUMBENT,
        median_us=None,
        compiled=Compiled(Status.OK, own.shared_bytes),
        reason=reason,
    )
    return replace(winner, entry=entry)


def wholly_named(
    named: Iterable[Problem], stored: Collection[Problem], left_out: Collection[Problem]
) -> set[Problem]:
    """Return all problems that one of `named` stands for, if all of them are left out; else
    nothing.
    """
    meant = (stored_for([problem], stored) for problem in named)
    return next((some for some in meant if some and some <= set(left_out)), set())


def _why(wholly: bool, sizes: Sequence[str]) -> str:
    return _WHOLLY if wholly else _PARTLY.format(" ".join(sizes))


def _only_predicted(
    problems: Collection[Problem], stored: Counter[Problem], predicted: Counter[Problem]
) -> ExportRefused:
    specs = sorted(problem.spec() for problem in problems)
    more = len(specs) - 1
    others = f" and {more} other problem{'s' * (more > 1)}" if more else ""
    some, all_ = (sum(counts[one] for one in problems) for counts in (predicted, stored))
    return ExportRefused(
        f"{some} of the {all_} winners for {specs[0]}{others} were predicted, not measured: "
        "measure them, or ",
        cli="pass --allow-predicted",
        api="pass allow_predicted=true",
        page="include predicted winners",
    )


def _names(wanted: Problem, problem: Problem, stored: Collection[Problem]) -> bool:
    if wanted in stored or wanted.family != problem.family:
        return wanted == problem
    return family_of(problem).alike(wanted, problem)

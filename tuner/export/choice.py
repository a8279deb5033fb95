"""Choose the winners to export, and make their files, which are not written yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tuner.devices.table import Device
from tuner.engines.engine import Engine
from tuner.errors import ExportRefused
from tuner.export.advice import NO_FLAGS, Advice, Verdict, advise_all, flags_to_start
from tuner.export.delivery import Delivery, ExportFile, delivery_of, files_by_card
from tuner.export.selection import (
    LeftOut,
    leave_out_predicted,
    left_out_lines,
    no_winners,
    select,
    wholly_named,
    with_shipped,
)
from tuner.problems.points import Problem
from tuner.problems.registry import Family, families, family_of
from tuner.problems.results import Winner

# The files of each family, by its name, which are not written yet: see `files_by_card`.
MadeFiles = Mapping[str, Sequence[tuple[Device, Sequence[ExportFile]]]]


@dataclass(frozen=True)
class Choice:
    """The winners to export and their files, winners that are left alone, stored problems that are
    left out, and the advice.
    """

    winners: Sequence[Winner]
    left_out: Sequence[LeftOut]
    advice: Sequence[Advice] = ()
    left_alone: Sequence[Winner] = ()
    files: MadeFiles = field(default_factory=dict)
    flags: Sequence[str] = ()  # that the files need, besides the servers' present flags

    @property
    def not_written(self) -> list[LeftOut]:
        """Return all stored problems without files, and why."""
        alone = [one for one in self.advice if one.verdict is Verdict.LEAVE]
        return [*self.left_out, *(LeftOut(one.problem, f"leave it: {one.reason}") for one in alone)]


def choose(
    winners: Sequence[Winner],
    device: Device,
    engine: Engine,
    out: Path | None,
    *,
    allow_predicted: bool,
    wanted: Sequence[Problem] = (),
    named: Sequence[Problem] = (),
    flags: Mapping[str, str] = NO_FLAGS,
) -> Choice:
    """Choose a device's winners to export under `out`, or into the engine if None. If `wanted` has
    problems, only their winners; see `select`.

    Leave out problems that servers cannot load, and unless `allow_predicted`, sizes with predicted
    winners. Raises ExportRefused if nothing is left, and if all problems that one of `named` stands
    for are left out. Then leave out winners whose files are not advised for servers that are
    started with `flags`: perhaps all winners.
    """
    found = wanted_winners(wanted, winners, device, engine, named)
    loaded, left_out = loadable(found, engine, into_engine=out is None)
    kept = loaded
    if not allow_predicted:
        kept, predicted = leave_out_predicted(loaded, named)
        left_out += predicted
    advice = advise_all(kept, device, (engine.name, engine.version), flags, wanted)
    advice, unwritable, files = writable(advice, engine, device, out, named)
    left_out += unwritable
    alone = {one.problem for one in advice if one.verdict is Verdict.LEAVE}
    alone |= {winner.problem for winner in loaded} - {winner.problem for winner in kept}
    return Choice(
        [winner for one in advice for winner in one.winners],
        left_out,
        advice,
        [winner for winner in loaded if winner.problem in alone],
        files,
        flags_to_start(advice, of_one_model=bool(wanted)),
    )


def wanted_winners(
    wanted: Sequence[Problem],
    winners: Sequence[Winner],
    device: Device,
    engine: Engine,
    named: Sequence[Problem],
) -> Sequence[Winner]:
    """Return all problems' winners that the store has for a device, or the winners of the `wanted`
    problems if there are any; see `select`. A problem that only the shelf has must be wanted.

    Raises ExportRefused if there are none, with the nearest problem if a user `named` the first.
    """
    if wanted:
        typed = wanted[0] in named
        return with_shipped(select(winners, wanted, device, engine, typed=typed))
    own = {winner.problem for winner in winners if not winner.from_shelf}
    found = [winner for winner in winners if winner.problem in own]
    if not found:
        or_else = ", or name a model: the shelf has files for some" if winners else ""
        raise no_winners(device, engine, or_else=or_else)
    return with_shipped(found)


def loadable(
    winners: Sequence[Winner], engine: Engine, *, into_engine: bool = False
) -> tuple[list[Winner], list[LeftOut]]:
    """Return the winners that the engine's servers can load, and the problems of the others.

    Raises ExportRefused if servers can load none.
    """
    kept: list[Winner] = []
    left: list[LeftOut] = []
    for family in families_of(winners):
        mine = winners_of(family, winners)
        why = delivery_of(engine, family.name).obstacle(into_engine=into_engine)
        if not why:
            kept += mine
            continue
        if len(mine) == len(winners):
            raise ExportRefused(f"there are winners for {family.name} alone: {why}")
        problems = sorted({winner.problem for winner in mine}, key=lambda problem: problem.spec())
        left += [LeftOut(problem, why) for problem in problems]
    if not kept and left:
        raise ExportRefused("; ".join(left_out_lines(left)))
    return kept, left


def writable(
    advice: Sequence[Advice],
    engine: Engine,
    device: Device,
    out: Path | None,
    named: Sequence[Problem] = (),
) -> tuple[list[Advice], list[LeftOut], MadeFiles]:
    """Return the advice without the problems whose files cannot be written, these problems, and the
    files of the families without such problems.

    Such a problem asks for the same file as another problem, or servers could not use its entries.
    Raises ExportRefused if no problem with files is left, or no problem that one of `named` stands
    for.
    """
    why: dict[Problem, str] = {}
    asking: dict[Path, list[Problem]] = {}
    made: dict[str, Sequence[tuple[Device, Sequence[ExportFile]]]] = {}
    with_files = [one for one in advice if one.winners]
    winners = [winner for one in with_files for winner in one.winners]
    for family in families_of(winners):
        delivery = delivery_of(engine, family.name)
        root = out or delivery.engine_root
        assert root is not None  # `loadable` left out families without a folder there
        try:
            found = [*files_by_card(delivery, winners_of(family, winners), device, root)]
            made[family.name], files = found, [file for _, some in found for file in some]
        except ExportRefused:
            mine = [one for one in with_files if one.problem.family in family.problems]
            files, refused = _one_by_one(mine, delivery, device, root)
            why |= refused
        for file in files:
            asking.setdefault(file.path, []).append(file.problem)
    for path, problems in sorted(asking.items()):
        if len(problems) > 1:
            said = f"{len(problems)} problems ask for {path.name}: name one of them to export it"
            why |= {problem: why.get(problem, said) for problem in problems}
    left_out = [LeftOut(problem, reason) for problem, reason in why.items()]
    problems_of = {one.problem for one in with_files}
    if why and (why.keys() == problems_of or wholly_named(named, problems_of, why)):
        raise ExportRefused("; ".join(left_out_lines(left_out)))
    for problem in why:  # what a file says of other problems may change without this one
        made.pop(family_of(problem).name, None)
    return [one for one in advice if one.problem not in why], left_out, made


def _one_by_one(
    advice: Iterable[Advice], delivery: Delivery, device: Device, root: Path
) -> tuple[list[ExportFile], dict[Problem, str]]:
    """Return the files of the problems whose files can be made alone, and why others cannot."""
    files: list[ExportFile] = []
    why: dict[Problem, str] = {}
    for one in advice:
        try:
            files += delivery.files(one.winners, device, root)
        except ExportRefused as refusal:
            why[one.problem] = str(refusal)
    return files, why


def families_of(some: Iterable[Winner | ExportFile]) -> list[Family]:
    """Return the families of some winners or files, in the order of the registry."""
    names = {family_of(one.problem).name for one in some}
    return [family for family in families() if family.name in names]


def winners_of(family: Family, winners: Sequence[Winner]) -> list[Winner]:
    """Return the winners of a family's problems."""
    return [winner for winner in winners if winner.problem.family in family.problems]

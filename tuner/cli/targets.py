"""Turn the targets of a command line into problems. Imports are late, so that --help is quick."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tuner.cli.family_options import FamilyChoice
    from tuner.devices.table import Device
    from tuner.engines.engine import Engine
    from tuner.jobs.targets import TuningTarget
    from tuner.models.serving import Serving
    from tuner.problems.points import Problem
    from tuner.problems.registry import Family, Selection


@dataclass(frozen=True)
class Asked:
    """A target and the common options that it is resolved with."""

    target: str
    device: Device
    engine: str
    engine_version: str | None
    tp: int = 1
    dtype: str | None = None


def resolve(asked: Asked, choice: FamilyChoice) -> TuningTarget:
    """The problems that a command line names; raises as `resolve_target` does."""
    from tuner.jobs.targets import resolve_target

    serving = _serving(asked, choice)
    return resolve_target(asked.target, serving, family=choice.family, given=_given(asked, choice))


def targets_of(asked: Asked, choice: FamilyChoice, every: bool) -> list[TuningTarget]:
    """The problems to tune: of one family, or with `every` of all families of a model.

    A model's notes name its other families. Raises as `resolve` does, and OptionsRefused for an
    option of a family that the model does not have.
    """
    from tuner.jobs.targets import in_words, other_families, reader_of

    if lines := _lines_of_log(asked.target):
        return [_of_line(line, asked, choice) for line in lines]
    if every:
        return _every_family(asked, choice)
    found = _resolve_or_hint(asked, choice)
    if not found.is_model or reader_of(asked.target):
        return [found]
    others = other_families(found.family, asked.target, _serving(asked, choice))
    if not others:
        return [found]
    also = f"{asked.target} also has {in_words(others)}; --all tunes everything"
    return [replace(found, notes=(*found.notes, also))]


def _resolve_or_hint(asked: Asked, choice: FamilyChoice) -> TuningTarget:
    """Like `resolve`; the error about a pasted message names the command that knows messages."""
    from tuner.diagnose import diagnose_text
    from tuner.errors import UnknownModel

    try:
        return resolve(asked, choice)
    except UnknownModel as error:
        if diagnose_text(asked.target).known:
            error.add(cli="; it is a server's message: `tuner diagnose FILE` knows it", api="")
        raise


def _lines_of_log(target: str) -> list[str]:
    """The missing files that a log names; empty where the target is no log.

    Raises BadInput for a log that names none.
    """
    from pathlib import Path

    from tuner.diagnose import missing_files
    from tuner.errors import BadInput

    path = Path(target)
    if target != "-" and (path.suffix == ".json" or not _is_file(path)):
        return []
    found = missing_files(path)
    if not found:
        raise BadInput(
            f"{target} is a log that names no missing config file: `tuner diagnose {target}` says "
            "what else it holds"
        )
    return found


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a pasted line can be no path at all
        return False


def _of_line(line: str, asked: Asked, choice: FamilyChoice) -> TuningTarget:
    """The problem of one missing file. A note says if the file is for another GPU."""
    from tuner.devices.table import find_device
    from tuner.errors import UnknownDevice

    found = resolve(replace(asked, target=line), choice)
    named = line.partition("device_name=")[2].partition(",")[0].removesuffix(".json")
    try:
        same = not named or find_device(named) == asked.device
    except UnknownDevice:
        same = False
    if same:
        return found
    note = f"the log's server has {named}, and this tunes for {asked.device.name}"
    return replace(found, notes=(*found.notes, note))


def _every_family(asked: Asked, choice: FamilyChoice) -> list[TuningTarget]:
    from tuner.errors import BadInput, OptionsRefused
    from tuner.jobs.targets import reader_of, resolve_all
    from tuner.problems.registry import families, find_family

    if choice.family:
        raise BadInput(f"--all tunes every family: leave {choice.family.flag} out")
    if find_family(asked.target) or reader_of(asked.target):
        raise BadInput("--all is for a model, and this is one problem: leave it out")
    found = resolve_all(asked.target, _serving(asked, choice))
    known = {option.name for target in found for option in target.family.options}
    options = {option.name: (one, option) for one in families() for option in one.options}
    if unused := [name for name in choice.values if name not in known]:
        raise OptionsRefused(
            {name: f"for {options[name][0].title}" for name in unused},
            {name: options[name][1].flag for name in unused},
        )
    return found


def _serving(asked: Asked, choice: FamilyChoice) -> Serving:
    from tuner.models.serving import Serving
    from tuner.problems.dtypes import parse_dtype
    from tuner.problems.registry import families

    shaping = [option for one in families() for option in one.shaping]
    return Serving(
        engine=asked.engine,
        engine_version=asked.engine_version,
        device=asked.device,
        tp=asked.tp,
        dtype=parse_dtype(asked.dtype) if asked.dtype else None,
        options=choice.of(tuple(shaping)),
    )


def settings_of(server_args: str, target: str | None) -> dict[str, str]:
    """The flags and variables of a server, and the class of its model if the target is a model.

    Raises BadInput for quotation marks that are not closed.
    """
    from tuner.engines.dispatch import of_class, server_settings
    from tuner.models.table import class_of

    return of_class(server_settings(server_args), class_of(target) if target else "")


def _given(asked: Asked, choice: FamilyChoice) -> list[str]:
    """The fields that the command line sets."""
    common = {"tp": asked.tp != 1, "dtype": bool(asked.dtype)}
    return [*(name for name, given in common.items() if given), *choice.values]


def selection_of(family: Family, problem: Problem, choice: FamilyChoice) -> Selection:
    """The points of a problem that the options select. Raises BadInput."""
    from tuner.cli.app import say
    from tuner.cli.workload import observed_fields
    from tuner.errors import MalformedWorkload

    values = choice.of(family.selecting)
    if choice.observed:
        observed = observed_fields(choice.observed, family, problem)
        try:
            return family.read_selection(problem, {**observed, **values})
        except MalformedWorkload as error:  # it has batches of the other phase only
            say(f"{choice.observed}: {error}; the usual batches are tuned")
    return family.read_selection(problem, values)


def problems_to_ship(
    specs: Sequence[str], model: Asked | None, choice: FamilyChoice
) -> list[Problem]:
    """The problems of `--problem` and `--model`; a model may have problems of several families.

    Raises as `resolve` does where the model has no problem, or tp does not divide it.
    """
    from tuner.jobs.targets import reader_of, resolve_all
    from tuner.problems.registry import find_family, parse_problem

    found = [parse_problem(spec) for spec in specs]
    if model is None:
        return found
    if find_family(model.target) or reader_of(model.target):
        return [*found, *resolve(model, choice).problems]
    of_model = resolve_all(
        model.target, _serving(model, choice), [choice.family] if choice.family else None
    )
    return [*found, *(problem for target in of_model for problem in target.problems)]


class CheckReport(Protocol):
    """The result of a family's check. It may also have `runs`, of `tuner.engines.dispatch.Runs`."""

    @property
    def fits(self) -> bool: ...
    def as_json(self) -> dict[str, Any]: ...
    def as_text(self) -> str: ...


def check_files(
    paths: Sequence[Path], device: Device, engine: Engine, tp: int, choice: FamilyChoice
) -> list[CheckReport]:
    """Check config files; a file's name tells its family.

    Raises MalformedConfigFile for a name of no family, and OptionsRefused for an option that only
    applies to models.
    """
    from tuner.engines.engine import supports
    from tuner.errors import MalformedConfigFile, OptionsRefused
    from tuner.problems.registry import families

    by_family: dict[str, list[Path]] = {}
    ours = [family for family in families() if supports(engine.name, family.name)]
    known = [family for family in ours if hasattr(family.module("check"), "check_files")]
    if not known:
        raise MalformedConfigFile(f"{engine.name} has no config files that can be checked")
    for path in paths:
        claimed = (f for f in known if f.module("check").claims(path.name, engine))
        family = next(claimed, None)
        if family is None:
            examples = " or ".join(f"{one.module('check').EXAMPLE_NAME!r}" for one in known)
            raise MalformedConfigFile(
                f"{path.name!r} is not the name of a file that {engine.name} reads, like "
                f"{examples}; `tuner status --dir FOLDER` checks the files of the plugin"
            )
        by_family.setdefault(family.name, []).append(path)
    reports: list[CheckReport] = []
    for family in known:
        if not (mine := by_family.get(family.name)):
            continue
        module = family.module("check")
        flags = {"tp": "--tp", **{o.name: o.flag for one in families() for o in one.shaping}}
        given = {*choice.values, *(["tp"] if tp != 1 else [])} - set(module.FILE_OPTIONS)
        if given:
            asked = " or ".join(one.flag for one in families() if one.flag)
            reason = f"for a model (with {asked}), and these are files"
            raise OptionsRefused({name: reason for name in flags if name in given}, flags)
        reports.append(module.check_files(mine, device, engine, choice.of(family.shaping)))
    return reports


def refuse_more_targets(family: Family, targets: Sequence[str]) -> None:
    """Raise BadInput where a check of a model is given more than one model."""
    from tuner.errors import BadInput

    if len(targets) > 1:
        raise BadInput(f"{family.flag} takes one model: leave {targets[1]!r} out")


def refuse_one_file(every: bool, files: Mapping[str, Path | None]) -> None:
    """Raise BadInput where all families are tuned with a file that is of one family."""
    from tuner.errors import BadInput

    if every and (given := [flag for flag, file in files.items() if file is not None]):
        raise BadInput(f"{given[0]} is for one family of kernels: leave it or --all out")

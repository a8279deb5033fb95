"""Turn the targets and options of a command line into problems.

Imports are late, so that --help is quick.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tuner.cli.app import say
from tuner.cli.family_options import FamilyChoice, observed_fields
from tuner.cli.targets import CommandTarget, read_command_target
from tuner.devices.table import Device, find_device
from tuner.errors import BadInput, MalformedWorkload, OptionsRefused, UnknownDevice
from tuner.problems.dtypes import parse_dtype
from tuner.problems.registry import Family, Selection, families, parse_problem
from tuner.shell import command_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tuner.engines.engine import Engine
    from tuner.models.model import Model
    from tuner.models.serving import Resolved, Serving
    from tuner.problems.points import Problem
    from tuner.targets import TuningTarget


@dataclass(frozen=True)
class TargetOptions:
    """A target and the common options that it is resolved with."""

    target: CommandTarget
    device: Device
    engine: str
    engine_version: str | None
    tp: int = 1
    dtype: str | None = None
    flags: Mapping[str, str] = field(default_factory=dict)  # of the server: `target.settings`


def resolve(asked: TargetOptions, choice: FamilyChoice) -> TuningTarget:
    """Return the problems that a command line names.

    Raises as `resolve_target` does, and BadInput for a log.
    """
    from tuner.targets import resolve_target

    if asked.target.found is None:
        raise BadInput(f"{asked.target.text} is a log of a server: name a model or its config.json")
    serving, given = _serving(asked, choice), _given(asked, choice)
    return resolve_target(asked.target.found, serving, family=choice.family, given=given)


def targets_of(asked: TargetOptions, choice: FamilyChoice, every: bool) -> list[TuningTarget]:
    """Return the problems to tune: of a family, of the families that --family names, or with
    `every` of all families of a model.

    A model's notes name its other families, and with `every` the options that select points of
    families that it does not have. Raises the errors of `resolve`, and OptionsRefused for an option
    that says how such a family is served.
    """
    from tuner.targets import other_families, with_options

    if asked.target.found is None:
        return _of_log(asked, choice)
    if every or choice.several:
        return _several_families(asked, choice, every)
    found = resolve(asked, choice)
    if not (model := asked.target.model):
        return [found]
    others = other_families(found.family, model, _serving(asked, choice))
    if not others:
        return [found]
    also = f"{asked.target.text} also has {with_options(others)}; --all tunes everything"
    return [replace(found, notes=(*found.notes, also))]


def asked_model(
    model: str, server_args: str, device: Device, engine: Engine, tp: int, dtype: str | None
) -> tuple[TargetOptions | None, dict[str, str]]:
    """Return the target of a model's name, None for "", and the settings of the servers.

    Raises as `read_command_target` and `CommandTarget.settings` do.
    """
    from tuner.engines.settings import server_settings

    if not model:
        return None, server_settings(server_args)
    named = read_command_target(model)
    flags = named.settings(server_args)
    return TargetOptions(named, device, engine.name, engine.version, tp, dtype, flags), flags


def _of_log(asked: TargetOptions, choice: FamilyChoice) -> list[TuningTarget]:
    """Return the problems of the missing files of a log. An unknown file does not end the others.

    Raises BadInput for a log that names no missing file, and the first error if no problem is
    known.
    """
    from tuner.diagnose import Hints
    from tuner.diagnose.missing import missing_files
    from tuner.models.table import model_or_none
    from tuner.targets import TuningTarget, refuse_options, server_of_model

    spec = f"{asked.engine}=={asked.engine_version}" if asked.engine_version else asked.engine
    hints = Hints(spec, asked.device.name, "", asked.tp if asked.tp != 1 else 0)
    findings, context = asked.target.findings, asked.target.context(hints)
    assert findings is not None  # a log has some
    found = missing_files(findings, context, _serving(asked, choice))
    if not found:
        text = asked.target.text
        raise BadInput(
            f"{text} is a log that names no missing config file: "
            f"`{command_line('tuner', 'diagnose', text)}` says what else it holds"
        )
    known = {o.name for one in found if one.family for o in one.family.options}
    refuse_options([found[0].family or families()[0]], choice.values.keys() - known)
    targets, errors, server = [], [], server_of_model(model_or_none(context.target()))
    for missing in found:
        family = missing.family
        if family is None:
            errors.append(BadInput(f"{missing.name} is a file for a kernel that is not tuned here"))
        elif missing.resolved is None:
            errors.append(missing.error or BadInput(f"{missing.name} names no problem"))
        else:
            notes = (*missing.resolved.notes, *_other_gpu(missing.resolved, asked))
            problems = missing.resolved.problems
            targets.append(TuningTarget(family, problems, notes, True, server))
    if not targets:
        raise errors[0]
    left_out = tuple(f"left out: {error}" for error in errors)
    return [replace(targets[0], notes=(*left_out, *targets[0].notes)), *targets[1:]]


def _other_gpu(resolved: Resolved, asked: TargetOptions) -> list[str]:
    """Return a note if the file is for another GPU."""
    named = resolved.device_name
    try:
        same = not named or find_device(named) == asked.device
    except UnknownDevice:
        same = False
    return [] if same else [f"the log's server has {named}, and this tunes for {asked.device.name}"]


def _several_families(
    asked: TargetOptions, choice: FamilyChoice, every: bool
) -> list[TuningTarget]:
    """Return the problems of the families that are asked for, and notes on options that do not
    apply. Raises BadInput for a target that is no model.
    """
    from tuner.targets import families_named, listed, resolve_all

    if every and choice.names:
        raise BadInput("--all tunes every family: leave --family out")
    if not (model := asked.target.model):
        option = "--all" if every else "several families with --family"
        raise BadInput(f"{option}: this is one problem and no model: leave it out")
    serving = _serving(asked, choice)
    found = resolve_all(model, serving, families_named(choice.names))
    known = {option.name for target in found for option in target.family.options}
    unused = [name for name in choice.values if name not in known]
    titles = {name: _titles_with(name) for name in unused}
    served = {option.name: option.flag for one in families() for option in one.shaping}
    if refused := [name for name in unused if name in served]:
        _refuse_if_left_out(refused, model, serving)
        raise OptionsRefused({name: f"for {titles[name]}" for name in refused}, served)
    flags = {option.name: option.flag for one in families() for option in one.options}
    bounds = [line for target in found for line in _not_bounding(target.family, choice)]
    have = listed([target.family.title for target in found])
    notes = [f"{flags[n]} is for {titles[n]}; {asked.target.text} has {have} alone" for n in unused]
    notes += dict.fromkeys(bounds)
    return [replace(found[0], notes=(*notes, *found[0].notes)), *found[1:]]


def _refuse_if_left_out(names: Sequence[str], model: Model, serving: Serving) -> None:
    """Raise BadInput, with the reason, if the first family with an option of these names was left
    out though the model may have its layers.
    """
    from tuner.targets import why_left_out

    for name in names:
        having = (one for one in families() if name in {option.name for option in one.shaping})
        family = next(having)
        if why := why_left_out(family, model, serving):
            flag = next(option.flag for option in family.shaping if option.name == name)
            raise BadInput(f"{flag} has no effect: {family.title} is left out: {why}")


def _not_bounding(family: Family, choice: FamilyChoice) -> list[str]:
    """Return a line for each given option that selects points of other families alone."""
    own = {option.name: option.flag for option in family.selecting}
    others = {o.name: o.flag for one in families() for o in one.selecting}
    given = [name for name in choice.values if name in others and name not in own]
    if not own or own.keys() & choice.values.keys():
        return []
    instead = " or ".join(own.values())
    return [f"{others[name]} does not bound {family.title}: {instead} does" for name in given]


def _titles_with(name: str) -> str:
    """Name the families that have an option."""
    from tuner.targets import listed

    having = [one for one in families() if name in {option.name for option in one.options}]
    return listed([one.title for one in having])


def _serving(asked: TargetOptions, choice: FamilyChoice) -> Serving:
    """Return how the server runs, as the options and its flags say. Raises BadInput if they
    contradict each other, or if a flag changes problems in a way that is not read.
    """
    from tuner.models.serving import Serving
    from tuner.targets import as_flags_say

    shaping = tuple(option for one in families() for option in one.shaping)
    serving = Serving(
        engine=asked.engine,
        engine_version=asked.engine_version,
        device=asked.device,
        tp=asked.tp,
        dtype=parse_dtype(asked.dtype) if asked.dtype else None,
        options=choice.of(shaping),
    )
    return as_flags_say(serving, asked.flags)


def divided(flags: Mapping[str, str], engine: str, choice: FamilyChoice) -> dict[str, str]:
    """Return the server's flags, with the engine's flag that divides experts as `--ep` says.

    The flags choose kernels. `TargetOptions.flags` has the ranks that the server itself says.
    """
    from tuner.engines.settings import with_experts

    ep = choice.of(tuple(o for one in families() for o in one.shaping if o.name == "ep"))
    return with_experts(engine, flags, ep.get("ep", 1))


def targets_and_settings(
    asked: TargetOptions, choice: FamilyChoice, every: bool
) -> tuple[list[TuningTarget], dict[str, str]]:
    """Return the problems to tune, as `targets_of`, and all known settings of the servers."""
    from tuner.engines.settings import settings_kept

    targets = targets_of(asked, choice, every)
    problems = [problem for found in targets for problem in found.problems]
    # Of a log, its text names the model.
    known = {**settings_kept(targets[0].server), **asked.flags}
    flags = divided(known, asked.engine, choice)
    server = asked.engine, asked.engine_version, asked.device
    return targets, asked.target.shown_settings(problems, *server, flags)


def _given(asked: TargetOptions, choice: FamilyChoice) -> list[str]:
    """Return the fields that the command line sets."""
    common = {"tp": asked.tp != 1, "dtype": bool(asked.dtype)}
    return [*(name for name, given in common.items() if given), *choice.values]


def selection_of(family: Family, problem: Problem, choice: FamilyChoice) -> Selection:
    """Return the points of a problem that the options select. Raises BadInput."""
    values = choice.of(family.selecting)
    if choice.observed:
        observed = observed_fields(choice.observed, family, problem)
        try:
            return family.read_selection(problem, {**observed, **values})
        except MalformedWorkload as error:  # it has batches of the other phase only
            say(f"{choice.observed}: {error}; the usual batches are tuned")
    return family.read_selection(problem, values)


def problems_to_ship(
    specs: Sequence[str], model: TargetOptions | None, choice: FamilyChoice
) -> list[Problem]:
    """Return the problems of `--problem` and of a model, which may have several families.

    Raises the errors of `resolve` if the model has no problem, or tp does not divide it.
    """
    from tuner.targets import families_named, resolve_all

    found = [parse_problem(spec) for spec in specs]
    if model is None:
        return found
    if not (named := model.target.model):
        return [*found, *resolve(model, choice).problems]
    of_model = resolve_all(named, _serving(model, choice), families_named(choice.names))
    if model.dtype:
        for note in [note for target in of_model for note in target.notes]:
            say(note)
    return [*found, *(problem for target in of_model for problem in target.problems)]

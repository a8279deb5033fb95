"""The command that shows the gain of tuning a model, before any work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli import complete
from tuner.cli.app import command, open_store, say, show
from tuner.cli.family_options import FamilyChoice, with_family_options
from tuner.cli.options import (
    ClusterFile,
    DeviceOrHere,
    DtypeName,
    EffortName,
    EngineOfTarget,
    Json,
    ServerArgs,
    Tp,
)
from tuner.cli.problems import TargetOptions, selection_of, targets_and_settings
from tuner.cli.targets import read_command_target
from tuner.errors import BadInput
from tuner.problems.registry import families, family_of
from tuner.shell import command_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from tuner.devices.table import Device
    from tuner.engines.engine import Engine
    from tuner.export.plan import ModelPlan
    from tuner.models.model import Model
    from tuner.problems.points import Problem
    from tuner.problems.registry import Selection
    from tuner.tuning.request import Effort


@command
@with_family_options
def plan(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            autocompletion=complete.models,
            help="A model, as in `tuner tune`; or --cluster.",
        ),
    ] = "",
    device: DeviceOrHere = "",
    tp: Tp = 1,
    *,
    choice: FamilyChoice,
    dtype: DtypeName = None,
    effort: EffortName = "standard",
    engine: EngineOfTarget = "",
    server_args: ServerArgs = "",
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Show which kernel servers run for each problem of a model, and the gain of tuning it."""
    from tuner.devices.here import device_or_here
    from tuner.engines.engine import find_engine, names_model
    from tuner.tuning.request import parse_effort

    card, wanted = device_or_here(device), parse_effort(effort)
    too_large = ""
    if cluster is not None:
        given = {
            repr(target): target,
            "--tp": tp != 1,
            "--dtype": dtype,
            "--engine": engine,
            "--server-args": server_args,
        }
        found, problems, flags = asked_by_cluster(cluster, card, choice, given)
        every, served = False, True  # not asked of the models of a cluster file
        notes: list[str] = []
    else:
        if not target:
            raise BadInput("name a model, or a cluster file: tuner plan --cluster cluster.toml")
        named = read_command_target(target)
        found = find_engine(engine or named.served_by()[0] or "sglang")
        every, flags = not (choice.names or named.is_one), named.settings(server_args)
        asked = TargetOptions(named, card, found.name, found.version, tp, dtype, flags)
        targets, flags = targets_and_settings(asked, choice, every)
        notes = [note for one in targets for note in one.notes]
        for note in notes:
            say(note)
        problems = [problem for one in targets for problem in one.problems]
        too_large = say_too_large(named.model, problems, card)
        classes = {one.server.architecture for one in targets if one.server.architecture}
        served = all(names_model(found.name, found.version, one) for one in classes)
    made = planned(problems, found, card, flags, choice, wanted, notes=notes)
    show(as_json, made.as_json, made.as_text)
    if not served:
        say(f"next: plan with a release of {found.name} that has the model's class")
    elif too_large:
        say("next: plan with the larger --tp of your servers")
    elif any(one.to_tune for one in made.problems):
        words = [*given_words(context), *["--all"] * every]
        say(f"next, on a machine with this GPU: {command_line('tuner', 'tune', *words)}")
    if made.on_shelf and cluster is None and not too_large:
        tunes = {o.name for f in families() for o in f.options if o not in f.shaping}
        words = list(given_words(context, {"effort", *tunes}))
        say(f"to write the shelf's files: {command_line('tuner', 'export', *words)}")


def asked_by_cluster(
    path: Path, device: Device, choice: FamilyChoice, given: Mapping[str, object]
) -> tuple[Engine, Sequence[Problem], Mapping[str, str]]:
    """Return the engine of a cluster file's servers, the problems of the chosen families for which
    they will ask files, and their flags. Raises BadInput for an option, in `given` by its name,
    that the file answers.
    """
    from tuner.deploy.bundle.asked_files import cluster_problems
    from tuner.deploy.bundle.asked_files import server_flags as flags_of_cluster
    from tuner.deploy.cluster import read_cluster
    from tuner.engines.engine import find_engine
    from tuner.targets import families_named

    if said := [name for name, value in given.items() if value]:
        raise BadInput(f"the cluster file says it: leave {' and '.join(said)} out")
    cluster = read_cluster(path)
    engine = find_engine(cluster.engine.spec)
    named = families_named(choice.names)
    problems = cluster_problems(cluster, engine, device)
    wanted = [problem for problem in problems if family_of(problem) in named]
    return engine, wanted, flags_of_cluster(cluster)


def planned(
    problems: Sequence[Problem],
    engine: Engine,
    device: Device,
    flags: Mapping[str, str],
    choice: FamilyChoice,
    effort: Effort,
    *,
    unread: bool = False,
    notes: Iterable[str] = (),
) -> ModelPlan:
    """Plan problems by the results of the local store.

    `unread` also plans to tune problems for which servers read no file. `notes` are the notes on
    the model.
    """
    from tuner.store.plans import stored_plan
    from tuner.store.workers import Estimates
    from tuner.targets import not_known

    def selection(problem: Problem) -> Selection:
        return selection_of(family_of(problem), problem, choice)

    with open_store() as store:
        made = stored_plan(
            store,
            Estimates(store.database),
            problems,
            engine,
            device,
            flags,
            effort,
            selection,
            unread=unread,
        )
    return replace(made, not_known=not_known(notes))


def given_words(context: typer.Context, others: Collection[str] = ()) -> Iterator[str]:
    """Yield the words of this command's line for another command: all but the `others`."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE" or name in ("as_json", *others):
            continue
        value = context.params[name]
        if parameter.param_type_name == "option":
            yield (parameter.secondary_opts if value is False else parameter.opts)[0]
        if not isinstance(value, bool):
            yield str(value)


def say_too_large(model: Model | None, problems: Sequence[Problem], device: Device) -> str:
    """Say so if a model does not fit the cards, as far as its experts show. Return the sentence."""
    from tuner.families.fused_moe.models import too_large
    from tuner.families.fused_moe.problem import FusedMoe

    if model is None:
        return ""
    layers = (problem for problem in problems if isinstance(problem, FusedMoe))
    said = next(filter(None, (too_large(model, layer, device) for layer in layers)), "")
    if said:
        say(said)
    return said

"""The command that says what tuning a model would bring, before any work."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.app import command, say, show
from tuner.cli.family_options import FamilyChoice, with_family_options
from tuner.cli.options import DeviceOrHere, DtypeName, EffortName, EngineSpec, Json, ServerArgs, Tp
from tuner.cli.targets import Asked, selection_of, settings_of, targets_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tuner.devices.table import Device
    from tuner.engines.engine import Engine
    from tuner.export.plan import ModelPlan
    from tuner.problems.points import Problem
    from tuner.tuning.request import Effort


@command
@with_family_options
def plan(
    choice: FamilyChoice,
    target: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model, as in `tuner tune`; or --cluster.")
    ] = "",
    device: DeviceOrHere = "",
    tp: Tp = 1,
    dtype: DtypeName = None,
    effort: EffortName = "standard",
    engine: EngineSpec = "sglang",
    server_args: ServerArgs = "",
    cluster: Annotated[
        Path | None,
        typer.Option(help="A cluster.toml, which names engine, model, ranks and flags."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say which kernel servers run for each problem of a model, and what tuning it would bring."""
    from tuner.devices.here import device_or_here
    from tuner.engines.engine import find_engine
    from tuner.errors import BadInput
    from tuner.tuning.request import parse_effort

    card, wanted = device_or_here(device), parse_effort(effort)
    if cluster is not None:
        made = _plan_cluster(cluster, target, card, choice, wanted)
    else:
        if not target:
            raise BadInput("name a model, or a cluster file: tuner plan --cluster cluster.toml")
        found, flags = find_engine(engine), settings_of(server_args, target)
        asked = Asked(target, card, found.name, found.version, tp, dtype)
        targets = targets_of(asked, choice, every=_is_model(target, choice))
        for note in [note for one in targets for note in one.notes]:
            say(note)
        problems = [problem for one in targets for problem in one.problems]
        made = planned(problems, found, card, flags, choice, wanted)
    show(as_json, made.as_json, made.as_text)


def _plan_cluster(
    path: Path, target: str, device: Device, choice: FamilyChoice, effort: Effort
) -> ModelPlan:
    """Plan what the servers of a cluster file will ask for."""
    from tuner.deploy.bundle.dispatch import server_flags as flags_of_cluster
    from tuner.deploy.bundle.keys import cluster_problems
    from tuner.deploy.cluster_file import read_cluster
    from tuner.engines.engine import find_engine
    from tuner.errors import BadInput

    if target:
        raise BadInput(f"the cluster file names the model: leave {target!r} out")
    cluster = read_cluster(path)
    engine = find_engine(cluster.engine.spec)
    problems = cluster_problems(cluster, engine, device)
    return planned(problems, engine, device, flags_of_cluster(cluster), choice, effort)


def planned(
    problems: Sequence[Problem],
    engine: Engine,
    device: Device,
    flags: Mapping[str, str],
    choice: FamilyChoice,
    effort: Effort,
) -> ModelPlan:
    """Plan problems with what the local store knows of them."""
    from tuner.export.plan import plan_model
    from tuner.problems.registry import family_of
    from tuner.store import Store, database_url
    from tuner.store.estimates import Estimates

    with Store.open(database_url(os.environ)) as store:
        winners = store.winners(
            device=device.name, engine=engine.name, engine_version=engine.version
        )
        estimates = Estimates.sharing(store)

        def seconds(problem: Problem) -> float | None:
            points = selection_of(family_of(problem), problem, choice).points(problem)
            return estimates.gpu_s(problem, device.name, effort, len(points))

        return plan_model(problems, engine, device, flags, winners, seconds)


def _is_model(target: str, choice: FamilyChoice) -> bool:
    from tuner.jobs.targets import reader_of
    from tuner.problems.registry import find_family

    return choice.family is None and not find_family(target) and not reader_of(target)

"""The command that tunes on this machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.app import command, say
from tuner.cli.family_options import FamilyChoice, with_family_options
from tuner.cli.options import (
    AllFamilies,
    ClusterFile,
    DeviceOrHere,
    DtypeName,
    EffortName,
    EngineOfTarget,
    Json,
    Measure,
    ServerArgs,
    Target,
    Tp,
)
from tuner.cli.plan import asked_by_cluster, planned, say_too_large
from tuner.cli.problems import TargetOptions, selection_of, targets_and_settings
from tuner.cli.runs import run_all, say_other_triton
from tuner.cli.targets import read_command_target
from tuner.errors import BadInput
from tuner.problems.registry import family_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tuner.devices.table import Device
    from tuner.engines.engine import Engine
    from tuner.problems.points import Problem
    from tuner.tuning.request import Effort, Request, Source


@command
@with_family_options
def tune(
    target: Target = "",
    device: DeviceOrHere = "",
    tp: Tp = 1,
    *,
    choice: FamilyChoice,
    every: AllFamilies = False,
    dtype: DtypeName = None,
    measure: Measure = "gpu",
    effort: EffortName = "standard",
    engine: EngineOfTarget = "",
    gpu: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of the GPU to measure on, as nvidia-smi lists them; default: the first of "
            "CUDA_VISIBLE_DEVICES, else 0.",
        ),
    ] = None,
    routing: Annotated[
        Path | None,
        typer.Option(
            help="File with captured top-k ids to measure with: a .pt tensor; default: random "
            "routing."
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="Write all measurements to this .csv.gz file; default: no recording."),
    ] = None,
    server_args: ServerArgs = "",
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Find the fastest configurations for the kernels of a model or a problem, and store them."""
    from tuner.engines.settings import settings_to_keep
    from tuner.tuning.request import Request, parse_effort

    wanted_effort = parse_effort(effort)
    source = _source(measure, gpu, routing)
    if cluster is not None:
        given = {
            repr(target): target,
            "--all": every,
            "--tp": tp != 1,
            "--dtype": dtype,
            "--engine": engine,
            "--server-args": server_args,
        }
        card = _card(device, source, gpu)
        work = _Work(card, *asked_by_cluster(cluster, card, choice, given), plans=True)
    else:
        served = _Served(device, engine, tp, dtype, server_args)
        work = _of_target(target, served, source, gpu, choice, every)
    _refuse_one_file(work.plans or choice.several, {"--record": record, "--routing": routing})
    if work.plans:
        work = _worth_tuning(work, choice, wanted_effort)
    problems = _predicted_ones(work.problems, source)
    requests = [
        Request(
            problem=problem,
            device=work.card,
            engine=work.engine,
            selection=selection_of(family_of(problem), problem, choice),
            source=source,
            effort=wanted_effort,
            server=settings_to_keep(work.engine.name, problem, work.flags),
        )
        for problem in problems
    ]
    if requests:
        _announce(requests, work)
    run_all(requests, record, as_json, cluster)


@dataclass(frozen=True)
class _Work:
    """The work that a command line asks for."""

    card: Device
    engine: Engine
    problems: Sequence[Problem]
    flags: Mapping[str, str]  # of the servers
    notes: Sequence[str] = ()
    plans: bool = False  # whether problems are planned, and only those worth it are tuned


@dataclass(frozen=True)
class _Served:
    """How the servers of a target run, as the command line says it."""

    device: str
    engine: str
    tp: int
    dtype: str | None
    server_args: str


def _of_target(
    target: str, served: _Served, source: Source, gpu: int | None, choice: FamilyChoice, every: bool
) -> _Work:
    """Return the work that a model, a problem, a line or a log asks for. Raises BadInput."""
    from tuner.engines.engine import find_engine
    from tuner.targets import ALL

    if not target:
        raise BadInput("name a model or a problem: tuner tune MODEL, or --cluster cluster.toml")
    named = read_command_target(target)
    said_engine, said_device = named.served_by()
    card = _card(served.device or said_device, source, gpu)
    engine = find_engine(served.engine or said_engine or "sglang")
    flags = named.settings(served.server_args)
    name, version = engine.name, engine.version
    asked = TargetOptions(named, card, name, version, served.tp, served.dtype, flags)
    targets, flags = targets_and_settings(asked, choice, every)
    problems = [problem for found in targets for problem in found.problems]
    notes = [note for found in targets for note in found.notes]
    say_too_large(named.model, problems, card)
    return _Work(card, engine, problems, flags, notes, every or choice.names == ALL)


def _worth_tuning(work: _Work, choice: FamilyChoice, effort: Effort) -> _Work:
    """Say the plan of the work, and return the work without problems that are not worth tuning."""
    served = (work.problems, work.engine, work.card, work.flags)
    made = planned(*served, choice, effort, unread=bool(choice.names), notes=work.notes)
    say(made.as_text())
    return replace(work, problems=[one.problem for one in made.problems if one.to_tune])


def _refuse_one_file(several: bool, files: Mapping[str, Path | None]) -> None:
    """Raise BadInput if several families are tuned with a file that is of one family."""
    if several and (given := [flag for flag, file in files.items() if file is not None]):
        said = f"{given[0]} is for one family of kernels: leave it out, or name its --family"
        raise BadInput(said)


def _source(measure: str, gpu: int | None, routing: Path | None) -> Source:
    """Return the source of times. Raises BadInput, also for a GPU that may not be used."""
    from tuner.devices.here import gpu_to_measure_on
    from tuner.problems.results import MeasureKind
    from tuner.tuning.request import parse_source

    source = parse_source(measure, routing=routing)
    if source.kind is not MeasureKind.GPU:
        return source
    return replace(source, gpu=gpu_to_measure_on(gpu))


def _predicted_ones(problems: Sequence[Problem], source: Source) -> Sequence[Problem]:
    """Return the problems whose times can be predicted, if times are to be predicted.

    Says which problems are left out. Raises BadInput if all are.
    """
    from tuner.problems.results import MeasureKind
    from tuner.targets import listed
    from tuner.tuning.request import refuse_unpredicted

    kept = [one for one in problems if family_of(one).predicts]
    left = [one for one in problems if one not in kept]
    if source.kind is not MeasureKind.PREDICT or not left:
        return problems
    if not kept:
        refuse_unpredicted(left[0], source.kind)
    titles = listed([family.title for family in dict.fromkeys(map(family_of, left))])
    say(f"left out {titles}: their times cannot be predicted; --measure gpu measures them")
    return kept


def _card(name: str, source: Source, gpu: int | None) -> Device:
    """Return the GPU to tune for: as named, else the GPU to measure on or of this machine.

    Raises UnknownDevice, and BadInput for a card on which nothing here measures.
    """
    from tuner.devices.here import device_of_gpu, device_or_here, visible_gpus
    from tuner.devices.table import find_device
    from tuner.problems.results import MeasureKind
    from tuner.tuning.request import refuse_unmeasured

    measures = source.kind is MeasureKind.GPU
    if measures and (gpu is not None or visible_gpus() is not None):
        card = device_of_gpu(name, source.gpu)
    else:
        card = find_device(name) if name else device_or_here("")  # a named card need not be here
    refuse_unmeasured(card, source.kind)
    return card


def _announce(requests: Sequence[Request], work: _Work) -> None:
    """Say, before the work, the facts that users need, and which kernel the servers run."""
    from tuner.engines.dispatch import engine_runs

    engine, problems = work.engine, [request.problem for request in requests]
    for note in work.notes:
        say(note)
    if not work.plans:  # a plan has said what runs
        for kernel in engine_runs(engine.name, engine.version, problems, work.card, work.flags):
            say(kernel.line())
    say_other_triton(engine)
    _say_undeliverable(engine, problems)


def _say_undeliverable(engine: Engine, problems: Sequence[Problem]) -> None:
    """Say so, before the work, if the engine's servers cannot load the results."""
    from tuner.export.delivery import delivery_of

    for family in dict.fromkeys(map(family_of, problems)):
        if why := delivery_of(engine, family.name).obstacle(into_engine=False):
            say(f"results for {family.title} cannot be exported: {why}")

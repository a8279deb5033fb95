"""The commands that tune and check on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli import complete
from tuner.cli.app import command, say
from tuner.cli.check_files import (
    check_files,
    check_names,
    device_of_files,
    engine_of_files,
    files_to_check,
    say_other_device,
)
from tuner.cli.family_options import FamilyChoice, with_family_options, with_model_options
from tuner.cli.options import (
    AllFamilies,
    ClusterFile,
    DeviceOrHere,
    DtypeName,
    EffortName,
    EngineOfTarget,
    Json,
    Measure,
    Seed,
    ServerArgs,
    Target,
    Tp,
    WritePatch,
)
from tuner.cli.plan import asked_by_cluster, planned
from tuner.cli.remedy import write_remedy
from tuner.cli.runs import print_reports, run_all, waiting
from tuner.cli.targets import (
    TargetOptions,
    refuse_more_targets,
    refuse_one_file,
    resolve,
    selection_of,
    server_of,
    settings_of,
    targets_and_settings,
)
from tuner.errors import BadInput, CompilerUnavailable, UnknownDevice
from tuner.problems.registry import family_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tuner.cli.check_files import CheckReport
    from tuner.devices.table import Device
    from tuner.engines.engine import Engine
    from tuner.problems.points import Problem
    from tuner.problems.registry import Family
    from tuner.tuning.request import Request, Source


@command
@with_family_options
def tune(
    choice: FamilyChoice,
    target: Target = "",
    device: DeviceOrHere = "",
    every: AllFamilies = False,
    tp: Tp = 1,
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
    seed: Seed = 0,
    server_args: ServerArgs = "",
    cluster: ClusterFile = None,
    include_unread: Annotated[
        bool,
        typer.Option(
            "--include-unread",
            help="With --all or --cluster, also tune problems for which servers would read "
            "no file.",
        ),
    ] = False,
    no_carry_over: Annotated[
        bool,
        typer.Option(
            "--no-carry-over",
            help="Leave stored entries out; default: they are tried too, and stay unless something "
            "is clearly faster.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Find the fastest configurations for the kernels of a model or a problem, and store them."""
    from tuner.engines.engine import find_engine
    from tuner.engines.settings import settings_to_keep
    from tuner.tuning.request import Request, parse_effort

    wanted_effort = parse_effort(effort)
    source = _source(measure, gpu, routing)
    problems: Sequence[Problem]
    notes: list[str] = []
    if cluster is not None:
        card = _card(device, source, gpu)
        given = {
            repr(target): target,
            "--all": every,
            "--tp": tp != 1,
            "--dtype": dtype,
            "--engine": engine,
            "--server-args": server_args,
        }
        found_engine, problems, flags = asked_by_cluster(cluster, card, given)
        every = True
    else:
        if not target:
            raise BadInput("name a model or a problem: tuner tune MODEL, or --cluster cluster.toml")
        named = server_of(target)
        card = _card(device or named.device, source, gpu)
        found_engine = find_engine(engine or named.engine or "sglang")
        flags = settings_of(server_args, target)
        name, version = found_engine.name, found_engine.version
        asked = TargetOptions(target, card, name, version, tp, dtype, flags)
        targets, flags = targets_and_settings(asked, choice, every)
        problems = [problem for found in targets for problem in found.problems]
        notes = [note for found in targets for note in found.notes]
    refuse_one_file(every, {"--record": record, "--routing": routing})
    if every:
        made = planned(problems, found_engine, card, flags, choice, wanted_effort)
        say(made.as_text())
        problems = [one.problem for one in made.problems if one.to_tune or include_unread]
    problems = _predicted_ones(problems, source)
    requests = [
        Request(
            problem=problem,
            device=card,
            engine=found_engine,
            selection=selection_of(family_of(problem), problem, choice),
            source=source,
            effort=wanted_effort,
            wide=choice.values.get("wide"),
            seed=seed,
            carry_over=not no_carry_over,
            server=settings_to_keep(found_engine.name, problem, flags),
        )
        for problem in problems
    ]
    if requests:
        # The plan of all problems has said what runs.
        _announce(requests, notes, None if every else flags)
    run_all(requests, record, as_json)


def _source(measure: str, gpu: int | None, routing: Path | None) -> Source:
    """The source of times. Raises BadInput, also for a GPU that may not be used."""
    from tuner.devices.here import gpu_to_measure_on
    from tuner.problems.results import MeasureKind
    from tuner.tuning.request import parse_source

    source = parse_source(measure, routing=routing)
    if source.kind is not MeasureKind.GPU:
        return source
    return replace(source, gpu=gpu_to_measure_on(gpu))


def _predicted_ones(problems: Sequence[Problem], source: Source) -> Sequence[Problem]:
    """The problems without those whose times are not predicted, if times are to be predicted.

    Says which are left out. Raises BadInput if all are.
    """
    from tuner.jobs.targets import listed
    from tuner.problems.results import MeasureKind
    from tuner.tuning.request import refuse_unpredicted

    kept = [one for one in problems if family_of(one).predicts]
    left = [one for one in problems if one not in kept]
    if source.kind is not MeasureKind.PREDICT or not left:
        return problems
    if not kept:
        refuse_unpredicted(left[0], source.kind)
    titles = listed([family.title for family in dict.fromkeys(map(family_of, left))])
    say(f"left out {titles}: such times are not predicted: measure them with --measure gpu")
    return kept


def _card(name: str, source: Source, gpu: int | None) -> Device:
    """The kind of GPU to tune for: as named, else of the GPU to measure on or of this machine.

    Raises UnknownDevice, and BadInput for a card on which nothing here measures.
    """
    from tuner.devices.here import device_of_gpu, device_or_here, visible_gpus
    from tuner.problems.results import MeasureKind
    from tuner.tuning.request import refuse_unmeasured

    chosen = gpu is not None or visible_gpus() is not None
    if chosen and source.kind is MeasureKind.GPU:
        card = device_of_gpu(name, source.gpu)
    else:
        card = device_or_here(name)
    refuse_unmeasured(card, source.kind)
    return card


def _announce(
    requests: Sequence[Request],
    notes: Sequence[str],
    flags: Mapping[str, str] | None,
) -> None:
    """Say, before the work, what users should know of it. With `flags` of a server, also which
    kernel it runs.
    """
    from tuner.engines.dispatch import engine_runs

    engine, card = requests[0].engine, requests[0].device
    for note in notes:
        say(note)
    if flags is not None:
        problems = [request.problem for request in requests]
        for kernel in engine_runs(engine.name, engine.version, problems, card, flags):
            say(kernel.line())
    _say_other_triton(engine)
    _say_undeliverable(engine, [request.problem for request in requests])


def _say_undeliverable(engine: Engine, problems: Sequence[Problem]) -> None:
    """Say so, before the work, if the engine's servers cannot load what is going to be tuned."""
    from tuner.export.delivery import delivery_of

    for family in dict.fromkeys(map(family_of, problems)):
        if why := delivery_of(engine, family.name).obstacle(into_engine=False):
            say(f"what is tuned for {family.title} cannot be exported: {why}")


def _say_other_triton(engine: Engine) -> None:
    """Say so if kernels are compiled with another Triton than the engine's servers run."""
    from tuner.engines.engine import triton_for

    try:
        note = triton_for(engine).note
    except CompilerUnavailable:
        return  # a replay compiles nothing, and whatever compiles will say it
    if note:
        say(note)


@command
@with_model_options
def check(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...|FOLDER|MODEL",
            help="Config files of an engine, or a folder of them, as `tuner export` writes it; "
            "with --attention, a model.",
        ),
    ],
    choice: FamilyChoice,
    device: DeviceOrHere = "",
    tp: Tp = 1,
    engine: Annotated[
        str,
        typer.Option(
            autocompletion=complete.engines,
            help="NAME or NAME==VERSION; default: that of the files' export, else sglang.",
        ),
    ] = "",
    model: Annotated[
        str,
        typer.Option(
            autocompletion=complete.models,
            help="The model that files are for; names of which it has no use are told.",
        ),
    ] = "",
    dtype: DtypeName = None,
    write_patch: WritePatch = None,
    as_json: Json = False,
) -> None:
    """Compile every entry of config files, or the engine's default constants for attention.

    Exit 1 if an entry cannot run on the device, or the engine never reads a file.
    """
    from tuner.engines.engine import find_engine

    if write_patch and choice.family is None:
        raise BadInput("--write-patch is for a model's attention: add --attention")
    if dtype and not model and choice.family is None:
        raise BadInput("--dtype is for the model of files: name it with --model")
    paths = files_to_check(targets) if choice.family is None else []
    found = find_engine(engine or engine_of_files(paths))
    if choice.family is None:
        served = model, tp, dtype
        reports = _check_files(paths, [*map(Path, targets)], device, found, served, choice)
    else:
        reports = _check_problems(targets, device, found, tp, choice, choice.family)
    for runs in (one for report in reports for one in getattr(report, "runs", ())):
        say(runs.line())
    _say_other_triton(found)
    print_reports(reports, as_json)
    if write_patch:
        write_remedy(getattr(reports[0], "remedy", None), write_patch)
    if not all(report.fits for report in reports):
        raise typer.Exit(1)


def _check_files(
    paths: Sequence[Path],
    named: Sequence[Path],
    device: str,
    engine: Engine,
    served: tuple[str, int, str | None],
    choice: FamilyChoice,
) -> list[CheckReport]:
    """Check files, for the model, tp and dtype that are `served`. If the GPU is refused, their
    names alone are judged.
    """
    from tuner.devices.here import card_to_check_or_here, device_or_here

    model, tp, dtype = served
    device = device or device_of_files(paths)
    try:  # a model's name needs the card itself
        card = device_or_here(device) if model else card_to_check_or_here(device)
    except UnknownDevice as refused:
        if not device:  # neither the command line nor the files name a GPU
            raise
        return [check_names(paths, device, engine, named, refused)]
    say_other_device(paths, card)
    asked = TargetOptions(model, card, engine.name, engine.version, tp, dtype) if model else None
    with waiting("compiling the files' entries"):
        return check_files(paths, card, engine, tp, choice, named, asked)


def _check_problems(
    targets: Sequence[str],
    device: str,
    engine: Engine,
    tp: int,
    choice: FamilyChoice,
    family: Family,
) -> list[Any]:
    """Check what an engine launches for a model's kernels of a family."""
    from tuner.devices.here import device_or_here

    refuse_more_targets(family, targets)
    card = device_or_here(device)
    resolved = resolve(TargetOptions(targets[0], card, engine.name, engine.version, tp), choice)
    for note in resolved.notes:
        say(note)
    module: Any = resolved.family.optional("check")
    if not hasattr(module, "check_problems"):
        what = f"{resolved.family.title} cannot be checked by a model"
        raise BadInput(f"{what}: give its config files, if {engine.name} has some")
    with waiting(f"compiling what {engine.name} would launch"):
        return [module.check_problems(resolved.problems, card, engine)]

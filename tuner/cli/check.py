"""The command that compiles config files, or the engine's own configurations."""

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
    say_tuned_elsewhere,
)
from tuner.cli.family_options import FamilyChoice, with_model_options
from tuner.cli.options import (
    DeviceOrHere,
    DtypeName,
    Json,
    ServerArgs,
    Tp,
    WritePatch,
)
from tuner.cli.problems import TargetOptions, asked_model, divided, resolve
from tuner.cli.remedy import write_remedy
from tuner.cli.runs import print_reports, say_other_triton, waiting
from tuner.cli.targets import read_command_target
from tuner.errors import BadInput, UnknownDevice
from tuner.problems.registry import families

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.cli.check_files import CheckResult
    from tuner.engines.engine import Engine
    from tuner.problems.registry import Family


@command
@with_model_options
def check(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...|FOLDER|MODEL",
            help="Config files of an engine, or a folder of them, as `tuner export` writes it; or "
            "a model, whose attention is checked.",
        ),
    ],
    device: DeviceOrHere = "",
    tp: Tp = 1,
    *,
    choice: FamilyChoice,
    engine: Annotated[
        str,
        typer.Option(
            autocompletion=complete.engines,
            help="NAME or NAME==VERSION; default: the engine of the files' export, else sglang.",
        ),
    ] = "",
    model: Annotated[
        str,
        typer.Option(
            autocompletion=complete.models,
            help="The model that the files are for: files that it never asks for are named.",
        ),
    ] = "",
    dtype: DtypeName = None,
    server_args: ServerArgs = "",
    write_patch: WritePatch = None,
    as_json: Json = False,
) -> None:
    """Compile every entry of config files, or the engine's default constants for attention.

    Exit 1 if an entry cannot run on the device, or the engine never reads a file.
    """
    from tuner.engines.engine import find_engine

    family = choice.family or _checked_by_model(targets)
    if write_patch and family is None:
        raise BadInput("--write-patch is for a model's attention: name the model in place of files")
    for option, given in (("--dtype", dtype), ("--server-args", server_args)):
        if given and not model and family is None:
            raise BadInput(f"{option} is for the model of files: name it with --model")
    paths = files_to_check(targets) if family is None else []
    found = find_engine(engine or engine_of_files(paths))
    served = tp, dtype, server_args
    if family is None:
        named = [*map(Path, targets)]
        reports = _check_files(paths, named, device, found, (model, *served), choice)
    else:
        reports = _check_problems(targets, device, found, served, choice, family)
    for runs in (one for report in reports for one in getattr(report, "runs", ())):
        say(runs.line())
    say_other_triton(found)
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
    served: tuple[str, int, str | None, str],
    choice: FamilyChoice,
) -> list[CheckResult]:
    """Check files for the servers of `served`. If the GPU is refused, check their names alone."""
    from tuner.devices.here import card_to_check_or_here, device_or_here

    model, tp, dtype, server_args = served
    device = device or device_of_files(paths)
    try:  # a model's name needs the card itself
        card = device_or_here(device) if model else card_to_check_or_here(device)
    except UnknownDevice as refused:
        if not device:  # neither the command line nor the files name a GPU
            raise
        return [check_names(paths, device, engine, named, refused)]
    say_other_device(paths, card)
    say_tuned_elsewhere(paths, engine)
    asked, _ = asked_model(model, server_args, card, engine, tp, dtype)
    with waiting("compiling the files' entries"):
        return check_files(paths, card, engine, tp, choice, named, asked)


def _check_problems(
    targets: Sequence[str],
    device: str,
    engine: Engine,
    served: tuple[int, str | None, str],
    choice: FamilyChoice,
    family: Family,
) -> list[Any]:
    """Check the configurations that an engine launches for a model's kernels of a family. The
    model's tp, dtype and flags are `served`.
    """
    from tuner.devices.here import device_or_here

    if len(targets) > 1:
        raise BadInput(f"a check of a model takes one model: leave {targets[1]!r} out")
    card = device_or_here(device)
    named = read_command_target(targets[0])
    choice = replace(choice, names=(family.name,))
    tp, dtype, server_args = served
    flags = named.settings(server_args)
    asked = TargetOptions(named, card, engine.name, engine.version, tp, dtype, flags)
    resolved = resolve(asked, choice)
    for note in resolved.notes:
        say(note)
    module: Any = resolved.family.optional("check")
    if not hasattr(module, "check_problems"):
        what = f"{resolved.family.title} cannot be checked by a model"
        raise BadInput(f"{what}: give its config files, if {engine.name} has some")
    with waiting(f"compiling {engine.name}'s own configurations"):
        flags = divided(asked.flags, engine.name, choice)
        return [module.check_problems(resolved.problems, card, engine, flags)]


def _checked_by_model(targets: Sequence[str]) -> Family | None:
    """Return the family that is checked if the targets are models; None for files."""
    from tuner.models.table import model_or_none

    for target in targets:
        path = Path(target)
        whole = path / "config.json" if path.is_dir() else path
        if whole.name == "config.json" and whole.is_file():
            continue
        if path.exists() or model_or_none(target) is None:
            return None
    return next(one for one in families() if hasattr(one.optional("check"), "check_problems"))

"""The commands that list models, devices and engines; engines are added and removed too."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli import complete
from tuner.cli.app import command_of, group, print_json, say, show
from tuner.cli.options import Json
from tuner.errors import BadInput
from tuner.render import table
from tuner.shell import command_line

if TYPE_CHECKING:
    from tuner.engines.inventory import Release
    from tuner.models.model import Model


known = group("list", "List models, devices, or the engines on this machine.")

_WIDTH = 80
_FOUND = {"engine_path": "TUNER_ENGINE_PATH"}


@command_of(known, "devices")
def list_devices(as_json: Json = False) -> None:
    """List the GPUs that can be tuned for."""
    from tuner.devices.table import devices

    found = devices()
    if as_json:
        print_json([device.as_json() for device in found])
        return
    rows: list[tuple[object, ...]] = []
    for device in found:
        gib, gbs = device.memory_bytes >> 30, round(device.bandwidth_gbs)
        rows.append((device.name, device.target.name, device.sm_count, gib, gbs))
        rows += [
            (f"  or {line}",) + (None,) * 4 for line in textwrap.wrap(", ".join(device.aliases), 50)
        ]
    typer.echo(table(("device", "arch", "SMs", "GiB", "GB/s"), rows))


@command_of(known, "models")
def list_models(as_json: Json = False) -> None:
    """List the models that can be named without a config.json."""
    from tuner.models.table import presets
    from tuner.targets import families_of

    presets_with = [(model, families_of(model.name)) for model in presets()]
    if as_json:
        named = [(model, [one.name for one in found]) for model, found in presets_with]
        print_json([{**model.as_json(), "families": names} for model, names in named])
        return
    rows = [
        (model.name, _experts(model), _stored_as(model), " ".join(one.name for one in found) or "-")
        for model, found in presets_with
    ]
    headers = ("model", "experts", "stored as", "families")
    head, rule, *lines = table(headers, rows, width=_WIDTH, drop=["stored as"]).split("\n")
    typer.echo(f"{head}\n{rule}")
    more: list[str] = []  # the other names of a model stand below all lines of its row
    models_left = iter(model for model, _ in presets_with)
    for line in lines:
        if not line.startswith(" "):
            more = [*more, line]
            typer.echo("\n".join(more))
            more = [f"  or {alias}" for alias in next(models_left).aliases]
        else:
            typer.echo(line)
    typer.echo("\n".join(more), nl=bool(more))


def _stored_as(model: Model) -> str:
    """Return a name that fits in 80 columns; `--json` has every quantization in full."""
    if model.dtype:
        return model.dtype.value
    return model.quantization if " " not in model.quantization else "other"


def _experts(model: Model) -> str:
    """Return the numbers of routed and shared experts: "256+1"."""
    if not model.E:
        return "-"
    return f"{model.E}+{model.n_shared_experts}" if model.n_shared_experts else str(model.E)


@command_of(known, "engines")
def list_engines(
    add: Annotated[
        str | None,
        typer.Option(
            metavar="NAME==VERSION",
            autocompletion=complete.engines,
            help="Add an engine's Python and JSON files, and the Triton that it pins. Nothing is "
            "installed. NAME alone gets the release that was checked with most.",
        ),
    ] = None,
    remove: Annotated[
        str | None,
        typer.Option(
            metavar="NAME==VERSION",
            autocompletion=complete.engines,
            help="Remove an engine, or triton==VERSION, that --add has added.",
        ),
    ] = None,
    no_triton: Annotated[
        bool,
        typer.Option("--no-triton", help="With --add, leave out the Triton (200 MB)."),
    ] = False,
    as_json: Json = False,
) -> None:
    """List, add or remove engines and their Tritons.

    pip's package index has the files that are added. No environment changes.
    """
    if add and remove:
        raise BadInput("--add and --remove exclude each other: give one of them")
    if no_triton and not add:
        raise BadInput("--no-triton is for --add NAME==VERSION")
    if add:
        _add_engine(add, no_triton, as_json)
    elif remove:
        _remove_engine(remove, as_json)
    else:
        _list_engines(as_json)


def _list_engines(as_json: bool) -> None:
    from tuner.engines.inventory import releases

    found = releases()
    if as_json:
        print_json([{**asdict(one), "path": str(one.path)} for one in found])
        return
    if found:
        typer.echo(_releases_text(found))
    for one in found:
        if one.triton and not one.triton_here:
            add = command_line("tuner", "list", "engines", "--add", f"{one.name}=={one.version}")
            say(f"Triton {one.triton} is missing: `{add}` adds it")
    if not any(one.name != "triton" for one in found):
        say("no engine is here: `tuner list engines --add sglang` adds an engine")


def _add_engine(spec: str, no_triton: bool, as_json: bool) -> None:
    from tuner.engines.engine import CHECKED
    from tuner.engines.fetch.add import add
    from tuner.engines.inventory import split_spec

    name, version = split_spec(f"{spec}=={CHECKED[spec]}" if spec in CHECKED else spec)
    folder = add(name, version, say, with_triton=not no_triton)
    show(as_json, lambda: {"path": str(folder)}, lambda: str(folder))


def _remove_engine(spec: str, as_json: bool) -> None:
    from tuner.engines.fetch.add import remove
    from tuner.engines.inventory import releases, split_spec

    name, version = split_spec(spec)
    folder = remove(name, version)
    show(as_json, lambda: {"path": str(folder)}, lambda: str(folder))
    left = releases()
    pinned = {one.triton for one in left}
    for one in left:
        if one.name == "triton" and one.source == "added" and one.version not in pinned:
            less = command_line("tuner", "list", "engines", "--remove", f"triton=={one.version}")
            say(f"no engine here pins Triton {one.version}: `{less}` removes it")


def _releases_text(found: Sequence[Release]) -> str:
    headers = ("name", "version", "found", "pins Triton", "used")
    rows = []
    for one in found:
        pins = one.triton or "-"
        pins += " (missing)" if one.triton and not one.triton_here else ""
        where = _FOUND.get(one.source, one.source)
        rows.append((one.name, one.version, where, pins, "yes" if one.used else "-"))
    return table(headers, rows)

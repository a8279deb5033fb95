"""The commands that list known devices and models."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

import typer

from tuner.cli.app import command, print_json
from tuner.cli.options import Json

_WIDTH = 80  # of the list of models, which has a line for each

if TYPE_CHECKING:
    from tuner.models.model import Model


@command
def devices(as_json: Json = False) -> None:
    """List the GPUs that can be tuned for."""
    from tuner.devices import table as table
    from tuner.render import table as render

    known = table.devices()
    if as_json:
        print_json([device.as_json() for device in known])
        return
    rows: list[tuple[object, ...]] = []
    for device in known:
        gib, gbs = device.memory_bytes >> 30, round(device.bandwidth_gbs)
        rows.append((device.name, device.target.name, device.sm_count, gib, gbs))
        rows += [(f"  or {line}",) + (None,) * 4 for line in wrap(", ".join(device.aliases), 50)]
    typer.echo(render(("device", "arch", "SMs", "GiB", "GB/s"), rows))


@command
def models(as_json: Json = False) -> None:
    """List the models that can be named without a config.json."""
    from tuner.jobs.targets import families_of
    from tuner.models.table import presets
    from tuner.problems.registry import families
    from tuner.render import table

    known = [(model, families_of(model.name)) for model in presets()]
    if as_json:
        named = [(model, [one.name for one in found]) for model, found in known]
        print_json([{**model.as_json(), "families": names} for model, names in named])
        return
    shown = [one for one in families() if any(one in found for _, found in known)]
    headers = (
        "model",
        "experts",
        "stored as",
        *(one.name for one in shown),
    )
    rows = [
        (
            model.name,
            _experts(model),
            _stored_as(model),
            *("yes" if one in found else "-" for one in shown),
        )
        for model, found in known
    ]
    head, rule, *lines = table(headers, rows, width=_WIDTH, drop=["stored as"]).split("\n")
    typer.echo(f"{head}\n{rule}")
    for line, (model, _) in zip(lines, known, strict=True):
        typer.echo("\n".join([line, *(f"  or {alias}" for alias in model.aliases)]))


def _stored_as(model: Model) -> str:
    """A name that fits in 80 columns; `--json` has every quantization in full."""
    if model.dtype:
        return model.dtype.value
    return model.quantization if " " not in model.quantization else "other"


def _experts(model: Model) -> str:
    """Routed and shared experts: "256+1"."""
    if not model.E:
        return "-"
    return f"{model.E}+{model.n_shared_experts}" if model.n_shared_experts else str(model.E)

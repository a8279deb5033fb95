"""The commands that list known devices and models."""

from __future__ import annotations

import typer

from tuner.cli.app import command, print_json
from tuner.cli.options import Json


@command
def devices(as_json: Json = False) -> None:
    """List the GPUs that can be tuned for."""
    from tuner.devices import table as table
    from tuner.render import table as render

    known = table.devices()
    if as_json:
        print_json([device.as_json() for device in known])
        return
    headers = ("device", "arch", "shared bytes a block", "SMs", "memory GB", "GB/s", "aliases")
    rows = [
        (
            device.name,
            device.target.name,
            device.shared_optin_bytes,
            device.sm_count,
            round(device.memory_bytes / 1e9),
            device.bandwidth_gbs,
            ", ".join(device.aliases),
        )
        for device in known
    ]
    typer.echo(render(headers, rows))


@command
def models(as_json: Json = False) -> None:
    """List the models that can be named without a config.json."""
    from dataclasses import asdict

    from tuner.models.table import presets
    from tuner.render import table

    known = presets()
    if as_json:
        print_json([asdict(model) for model in known])
        return
    headers = (
        *("model", "experts", "shared", "top-k", "intermediate", "hidden", "quantisation"),
        "attention heads x columns",
    )
    rows = [
        (
            model.name,
            model.E,
            model.n_shared_experts,
            model.top_k,
            model.intermediate,
            model.hidden,
            model.quantization,
            str(model.attention or "not known"),
        )
        for model in known
    ]
    typer.echo(table(headers, rows))

"""The commands about attention files on a server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.app import app, guarded, refuse_foreign, show
from tuner.cli.options import EngineSpec, Json

attention = typer.Typer(name="attention", no_args_is_help=True)
app.add_typer(attention)


@attention.callback()
def _group() -> None:
    """Inspect tuned attention files on a server."""


@attention.command()
@guarded
def status(
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir", metavar="DIR", help="Folder that `export` wrote; default: the environment's."
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="The GPU, e.g. H200; default: this machine's GPU.")
    ] = "",
    engine: EngineSpec = "sglang",
    as_json: Json = False,
) -> None:
    """Show which attention files a server on this machine would load, and why.

    Exit 1 if it would load none.
    """
    refuse_foreign("workers")
    from tuner.devices.table import find_device
    from tuner.engines.engine import find_engine
    from tuner.engines.sglang.attention.status import attention_status
    from workers.gpus import detect_gpus

    name = device or next(iter({gpu.device for gpu in detect_gpus()}), "")
    card = find_device(name) if name else None
    report = attention_status(find_engine(engine), card, folder, os.environ)
    show(as_json, report.as_json, report.as_text)
    if not report.ok:
        raise typer.Exit(1)

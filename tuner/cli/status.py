"""The command about the files that servers would load."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.app import command, refuse_foreign, show
from tuner.cli.options import EngineSpec, Json

Folder = Annotated[
    Path | None,
    typer.Option(
        "--dir", metavar="DIR", help="Folder that `export` wrote; default: the environment's."
    ),
]
DeviceHere = Annotated[str, typer.Option(help="The GPU, e.g. H200; default: this machine's GPU.")]


@command
def status(
    folder: Folder = None,
    device: DeviceHere = "",
    engine: EngineSpec = "sglang",
    as_json: Json = False,
) -> None:
    """Show which attention and GEMM files a server on this machine would load, and why.

    Exit 1 if a kind of files is there and it would load none of them.
    """
    refuse_foreign("workers")
    from tuner.devices.table import find_device
    from tuner.engines.engine import find_engine
    from tuner.engines.sglang.package import SGLang
    from tuner.engines.sglang.status import server_status
    from tuner.errors import UnsupportedFamily
    from workers.gpus import detect_gpus

    name = device or next(iter({gpu.device for gpu in detect_gpus()}), "")
    card = find_device(name) if name else None
    found = find_engine(engine)
    if not isinstance(found, SGLang):
        raise UnsupportedFamily(f"{found.name} has no plugin of this program, only sglang has")
    report = server_status(found, card, folder, os.environ)
    show(as_json, report.as_json, report.as_text)
    if not report.ok:
        raise typer.Exit(1)

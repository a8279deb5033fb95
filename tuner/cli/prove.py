"""The commands that prove exported files on this machine's GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.app import command, show
from tuner.cli.options import DeviceName, EngineSpec, Json


@command
def prove(
    device: DeviceName,
    out: Annotated[Path, typer.Option(help="The folder that `export` wrote.")] = Path(
        "configs_out"
    ),
    engine: EngineSpec = "sglang",
    as_json: Json = False,
) -> None:
    """Run the engine's loader and layer with exported files on this machine's GPU.

    Exit 1 if an output is wrong, or if a layer is slower than without the files. The engine must
    be installed here.
    """
    from tuner.devices.table import find_device
    from tuner.engines.engine import parse_spec
    from tuner.families.fused_moe.prove import prove as prove_root

    name, _ = parse_spec(engine)  # the engine that this Python imports, whatever its version
    proof = prove_root(out, find_device(device).name, name)
    show(as_json, proof.as_json, proof.as_text)
    if not proof.proven:
        raise typer.Exit(1)

"""Starts an engine's servers as they are, and with the exported files and the advised flags, and
compares them under load.

    python -m benchmarks.served Qwen/Qwen3-30B-A3B --device H100 --out configs_out

The engine must be installed here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.served.compare import compare_served
from benchmarks.served.request import ComparisonRequest, setup_of
from benchmarks.served.result import write_report
from tuner.cli.app import guarded, open_store, say, show
from tuner.cli.options import DeviceOrHere, EngineSpec, Json, Tp
from tuner.devices.here import device_or_here

app = typer.Typer()


@app.command()
@guarded
def compare(
    device: DeviceOrHere = "",
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="The model's folder, its name on the hub, or with --dummy its config.json.",
        ),
    ] = "",
    out: Annotated[Path, typer.Option(help="The folder that `export` wrote.")] = Path(
        "configs_out"
    ),
    engine: EngineSpec = "sglang",
    tp: Tp = 1,
    dummy: Annotated[
        bool,
        typer.Option("--dummy", help="Random weights; nothing is downloaded."),
    ] = False,
    layers: Annotated[
        int | None,
        typer.Option(help="With --dummy: so many of the model's layers; default: all."),
    ] = None,
    loads: Annotated[
        str,
        typer.Option(help="Loads, each SEQUENCESxPROMPT+ANSWER in tokens, with commas."),
    ] = "1x1024+128,1x8192+128,8x8192+32,16x1024+64",
    rounds: Annotated[
        int, typer.Option(help="How often each load is measured on each server.")
    ] = 7,
    args: Annotated[
        str, typer.Option(help="Flags of both servers, as one word; default: none.")
    ] = "",
    before_args: Annotated[
        str,
        typer.Option(
            help="Flags of the server without the files, e.g. "
            "'--attention-backend fa3'; default: none."
        ),
    ] = "",
    after_args: Annotated[
        str,
        typer.Option(
            help="Flags of the server with the files; default: those that stored times advise."
        ),
    ] = "",
    in_turn: Annotated[
        bool,
        typer.Option(
            "--in-turn",
            help="One server at a time; default: both at once where the memory holds them.",
        ),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(help="The first of two ports; default: any that are free."),
    ] = None,
    report: Annotated[
        Path, typer.Option(help="Folder for the report and the logs.", metavar="DIR")
    ] = Path("served_proof"),
    start_timeout: Annotated[
        float, typer.Option(help="Seconds for a server to become ready.")
    ] = 1800.0,
    load_timeout: Annotated[float, typer.Option(help="Seconds for an answer.")] = 600.0,
    as_json: Json = False,
) -> None:
    """Compare an engine's servers without and with exported files, under load.

    Exit 1 if an output is wrong, or if something is slower than without the files.
    """
    device = device_or_here(device).name
    request = ComparisonRequest(
        model=model,
        device=device,
        root=out,
        engine=engine,
        tp=tp,
        dummy=dummy,
        layers=layers,
        loads=loads,
        rounds=rounds,
        args=(args, before_args, after_args),
        in_turn=in_turn,
        port=port,
        folder=report,
        timeouts_s=(start_timeout, load_timeout),
    )
    with open_store() as store, setup_of(request, store) as setup:
        found = compare_served(setup, say)
        write_report(found, request.folder)
    say(f"the report and the logs are in {request.folder}")
    show(as_json, found.as_json, found.as_text)
    if not found.proven:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()

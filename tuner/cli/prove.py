"""The command that proves exported files on this machine's GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.app import command, open_store, say, show
from tuner.cli.options import DeviceOrHere, EngineSpec, Json, Tp
from tuner.errors import BadInput

if TYPE_CHECKING:
    from tuner.deploy.served.prove import ProofRequest


@command
def prove(
    device: DeviceOrHere = "",
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="With --server: the model's folder, its name on the hub, or with --dummy "
            "its "
            "config.json.",
        ),
    ] = "",
    out: Annotated[Path, typer.Option(help="The folder that `export` wrote.")] = Path(
        "configs_out"
    ),
    engine: EngineSpec = "sglang",
    server: Annotated[
        bool,
        typer.Option(
            "--server",
            help="Start the engine's servers as they are, and with the files and the "
            "flags that "
            "are advised, and compare them under load; default: run the engine's fused-MoE layer "
            "alone.",
        ),
    ] = False,
    tp: Tp = 1,
    dummy: Annotated[
        bool,
        typer.Option("--dummy", help="With --server: random weights; nothing is downloaded."),
    ] = False,
    layers: Annotated[
        int | None,
        typer.Option(
            help="With --server: with --dummy, so many of the model's layers; default: all."
        ),
    ] = None,
    loads: Annotated[
        str,
        typer.Option(
            help="With --server: loads, each SEQUENCESxPROMPT+ANSWER in tokens, with commas."
        ),
    ] = "1x1024+128,1x8192+128,8x8192+32,16x1024+64",
    rounds: Annotated[
        int, typer.Option(help="With --server: how often each load is measured on each server.")
    ] = 7,
    args: Annotated[
        str, typer.Option(help="With --server: flags of both servers, as one word; default: none.")
    ] = "",
    before_args: Annotated[
        str,
        typer.Option(
            help="With --server: flags of the server without the files, e.g. "
            "'--attention-backend fa3'; default: none."
        ),
    ] = "",
    after_args: Annotated[
        str,
        typer.Option(
            help="With --server: flags of the server with the files; default: those that "
            "stored times advise."
        ),
    ] = "",
    in_turn: Annotated[
        bool,
        typer.Option(
            "--in-turn",
            help="With --server: one server at a time; default: both at once where the memory "
            "holds them.",
        ),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(help="With --server: the first of two ports; default: any that are free."),
    ] = None,
    report: Annotated[
        Path, typer.Option(help="With --server: folder for the report and the logs.", metavar="DIR")
    ] = Path("served_proof"),
    start_timeout: Annotated[
        float, typer.Option(help="With --server: seconds for a server to become ready.")
    ] = 1800.0,
    load_timeout: Annotated[
        float, typer.Option(help="With --server: seconds for an answer.")
    ] = 600.0,
    as_json: Json = False,
) -> None:
    """Prove exported files on this machine's GPU, in the engine's layer or in its servers.

    Exit 1 if an output is wrong, or if something is slower than without the files. The engine must
    be installed here.
    """
    from tuner.devices.here import device_or_here

    device = device_or_here(device).name
    if not server:
        _prove_layer(device, out, engine, model, as_json)
        return
    from tuner.deploy.served.prove import ProofRequest

    request = ProofRequest(
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
    _prove_server(request, as_json)


def _prove_layer(device: str, out: Path, engine: str, model: str, as_json: bool) -> None:
    from tuner.engines.engine import parse_spec
    from tuner.families.fused_moe.prove import prove as prove_root

    if model:
        raise BadInput(f"{model!r} is for servers: add --server, or leave it out")
    name, _ = parse_spec(engine)  # the engine that this Python imports, whatever its version
    proof = prove_root(out, device, name)
    show(as_json, proof.as_json, proof.as_text)
    if not proof.proven:
        raise typer.Exit(1)


def _prove_server(request: ProofRequest, as_json: bool) -> None:
    from tuner.deploy.served.prove import prove_served
    from tuner.deploy.served.report import write_report
    from tuner.deploy.served.request import plan_of

    with open_store() as store, plan_of(request, store) as plan:
        proof = prove_served(plan, say)
        write_report(proof, request.folder)
    say(f"the report and the logs are in {request.folder}")
    show(as_json, proof.as_json, proof.as_text)
    if not proof.proven:
        raise typer.Exit(1)

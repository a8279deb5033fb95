"""The commands that run the service: the API and workers."""

from __future__ import annotations

from typing import Annotated

import typer

from tuner.cli.app import command, refuse_foreign
from tuner.errors import BadInput


@command
def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond loopback, make a key first.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="TCP port; 0 takes a free port.")
    ] = 8765,
    worker: Annotated[
        bool | None,
        typer.Option(
            "--worker/--no-worker",
            help="Run jobs in this process too; default: unless TUNER_BROKER_URL is set.",
        ),
    ] = None,
    no_auth: Annotated[
        bool,
        typer.Option("--no-auth", help="Let all programs of this machine in without a key."),
    ] = False,
) -> None:
    """Serve the HTTP API, and run its jobs. If the store has no key, make a first key."""
    from dataclasses import replace

    refuse_foreign("api")
    refuse_foreign("workers")
    try:
        from api.serve import serve as run
        from api.settings import read_api_settings
    except ModuleNotFoundError as error:
        said = f"the package {error.name} is missing: pip install 'engine-tuner[api]'"
        raise BadInput(said) from None

    settings = replace(read_api_settings(), no_auth=no_auth)
    workers = settings.service.broker_url is None if worker is None else worker
    run(settings, host, port, workers=workers, say=typer.echo)


@command
def worker(
    device: Annotated[
        list[str] | None,
        typer.Option(help="Without a GPU here: replay and predict for this GPU; default: all."),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, max=256, help="Without a GPU here: how many jobs at once.")
    ] = 1,
) -> None:
    """Run queued jobs on this machine: a process per GPU, or --processes without a GPU."""
    refuse_foreign("workers")
    from workers.fleet import run_fleet
    from workers.machine import detect_gpus
    from workers.settings import read_settings

    run_fleet(read_settings(), detect_gpus(), device, processes)

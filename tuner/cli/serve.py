"""The commands that run the API and make the store."""

from __future__ import annotations

from typing import Annotated

import typer

from tuner.cli.app import command, refuse_foreign, say


@command
def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond loopback, make a key first.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="TCP port; 0 takes a free one.")
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
    """Serve the HTTP API, and run its jobs. Without any key in the store, make a first one."""
    from dataclasses import replace

    from tuner.errors import BadInput

    refuse_foreign("api")
    refuse_foreign("workers")
    try:
        from api.serve import serve as run
        from api.settings import read_api_settings
    except ModuleNotFoundError as error:
        raise BadInput(f"no {error.name} here: pip install 'engine-tuner[api]'") from None

    settings = replace(read_api_settings(), no_auth=no_auth)
    workers = settings.service.broker_url is None if worker is None else worker
    run(settings, host, port, workers=workers, say=typer.echo)


@command
def migrate() -> None:
    """Create the store, or upgrade its schema. Other commands do this too when they open it."""
    refuse_foreign("workers")
    from tuner.store import Store
    from tuner.store.connect import place_of
    from workers.settings import read_settings

    settings = read_settings()
    Store.open(settings.database_url).close()
    say(f"the store {place_of(settings.database_url)} has this program's schema")

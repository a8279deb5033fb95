"""The commands that run the API, manage its keys, and make the store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.app import app, command, guarded, refuse_foreign, say, show
from tuner.cli.options import Json

KeyName = Annotated[
    str, typer.Argument(metavar="NAME", help="The person or program that the key is for.")
]

keys = typer.Typer(name="keys", help="Manage API keys.", no_args_is_help=True)
app.add_typer(keys)


@command
def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond loopback it needs API keys.")
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
) -> None:
    """Serve the HTTP API, and run its jobs."""
    from tuner.errors import BadInput

    refuse_foreign("api")
    refuse_foreign("workers")
    try:
        from api.serve import serve as run
        from api.settings import read_api_settings
    except ModuleNotFoundError as error:
        raise BadInput(f"no {error.name} here: pip install 'engine-tuner[api]'") from None

    settings = read_api_settings()
    run(
        settings,
        host,
        port,
        workers=settings.service.broker_url is None if worker is None else worker,
    )


@command
def migrate() -> None:
    """Create the store, or upgrade its schema. Other commands do this too when they open it."""
    refuse_foreign("workers")
    from tuner.store import Store
    from workers.settings import read_settings

    Store.open(read_settings().database_url).close()


@keys.command("add")
@guarded
def add_key(
    name: KeyName,
    scope: Annotated[
        str, typer.Option(help="What the key allows: read, submit or admin.")
    ] = "submit",
    token_file: Annotated[
        Path | None, typer.Option(help="File with an existing key; default: make a new key.")
    ] = None,
) -> None:
    """Make a key and print it. Only its hash is stored."""
    refuse_foreign("workers")
    from tuner.errors import BadInput
    from tuner.store.keys import KeyStore, parse_scope
    from workers.settings import read_settings

    try:
        token = token_file.read_text(encoding="utf-8") if token_file else None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {token_file}: {error}") from None
    with KeyStore.open(read_settings().database_url) as store:
        made = store.add(name, parse_scope(scope), token)
    if token is None:
        say(f"the key of {name}; it is not shown again:")
        typer.echo(made)


@keys.command("list")
@guarded
def list_keys(as_json: Json = False) -> None:
    """List the names, scopes and last uses of keys."""
    refuse_foreign("workers")
    from tuner.render import table
    from tuner.store.keys import KeyStore
    from workers.settings import read_settings

    with KeyStore.open(read_settings().database_url) as store:
        rows = [
            {
                "name": key.name,
                "scope": key.scope.name.lower(),
                "created_at": key.created_at.isoformat(timespec="seconds"),
                "last_used_at": key.last_used_at and key.last_used_at.isoformat(timespec="hours"),
                "revoked_at": key.revoked_at and key.revoked_at.isoformat(timespec="seconds"),
            }
            for key in store.list()
        ]
    headers = ("name", "scope", "created", "last used", "revoked")
    cells = [tuple(value or "" for value in row.values()) for row in rows]
    show(as_json, lambda: rows, lambda: table(headers, cells))


@keys.command("revoke")
@guarded
def revoke_key(
    name: KeyName,
    force: Annotated[
        bool, typer.Option("--force", help="Revoke the last key of scope admin too.")
    ] = False,
) -> None:
    """Revoke a key at once. The API does not open again without keys."""
    refuse_foreign("workers")
    from tuner.store.keys import KeyStore
    from workers.settings import read_settings

    with KeyStore.open(read_settings().database_url) as store:
        store.revoke(name, last_too=force)

"""The API's process and its keys, and the store's schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.app import app, command, guarded, print_json, say
from tuner.cli.options import Json

KeyName = Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is.")]

keys = typer.Typer(name="keys", help="Who may use the API.", no_args_is_help=True)
app.add_typer(keys)


@command
def serve(
    host: Annotated[str, typer.Option(help="Beyond loopback only with keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8765,
    worker: Annotated[
        bool | None,
        typer.Option(
            "--worker/--no-worker",
            help="Do jobs in this process too; default: where TUNER_BROKER_URL is not set.",
        ),
    ] = None,
) -> None:
    """Serve the HTTP API, and do its jobs."""
    from tuner.errors import BadInput

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
    """Make the store, or bring it to this version's schema, as every command does."""
    from tuner.store import Store
    from workers.settings import read_settings

    Store.open(read_settings().database_url).close()


@keys.command("add")
@guarded
def add_key(
    name: KeyName,
    scope: Annotated[str, typer.Option(help="read, submit or admin.")] = "submit",
    token_file: Annotated[
        Path | None, typer.Option(help="Holds a key made elsewhere; default: a new one.")
    ] = None,
) -> None:
    """Make a key, and print it: only its hash is kept."""
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
    """List the keys' names, scopes and last uses."""
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
    if as_json:
        print_json(rows)
    else:
        headers = ("name", "scope", "created", "last used", "revoked")
        typer.echo(table(headers, [tuple(value or "" for value in row.values()) for row in rows]))


@keys.command("revoke")
@guarded
def revoke_key(name: KeyName) -> None:
    """End a key, at once."""
    from tuner.store.keys import KeyStore
    from workers.settings import read_settings

    with KeyStore.open(read_settings().database_url) as store:
        store.revoke(name)

"""The commands that manage the API's keys, in the store itself."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.admin import admin
from tuner.cli.app import command_of, group, say, show
from tuner.cli.options import Json
from tuner.errors import BadInput
from tuner.render import table

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tuner.store.keys import KeyStore

KeyName = Annotated[
    str, typer.Argument(metavar="NAME", help="The person or program that the key is for.")
]
Scopes = Annotated[
    str,
    typer.Option(
        help="Rights of the key: read, submit or admin. `submit,urgent` lets its jobs go before "
        "waiting jobs, as `admin` does."
    ),
]

keys = group("keys", "Create, list and revoke API keys.", of=admin)


@command_of(keys, "create")
def create_key(
    name: KeyName,
    scope: Scopes = "submit",
    token_file: Annotated[
        Path | None, typer.Option(help="File with an existing key; default: make a new key.")
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(help="90d, or a date at whose beginning (UTC) it ends; default: never."),
    ] = None,
) -> None:
    """Make a key and print it. Only its hash is stored."""
    from tuner.store.api_key import parse_expiry, parse_scopes
    from tuner.store.database import utc_now

    scopes, urgent = parse_scopes(scope)
    ends = None if expires is None else parse_expiry(expires, utc_now())
    token = None if token_file is None else _read_token(token_file)
    with _open_keys() as store:
        made = store.add(name, scopes, token, urgent=urgent, expires_at=ends)
    if token is None:
        say(f"the key of {name}; it is not shown again:")
        typer.echo(made)


@command_of(keys, "ensure")
def ensure_key(
    name: KeyName,
    token_file: Annotated[Path, typer.Option(help="File with the key.")],
    scope: Scopes = "submit",
) -> None:
    """Make the key in a file the only valid key of NAME. Safe to repeat.

    Another key that NAME had until now is refused within two seconds, for good.
    """
    from tuner.store.api_key import parse_scopes
    from tuner.store.keys import Ensured

    scopes, urgent = parse_scopes(scope)
    token = _read_token(token_file)
    with _open_keys() as store:
        done = store.ensure(name, scopes, token, urgent=urgent)
    words = {
        Ensured.NOTHING: f"the key of {name} is stored already",
        Ensured.ADDED: f"the key of {name} is stored",
        Ensured.CHANGED: f"the key of {name} has the scope {scope} now",
        Ensured.REPLACED: f"the key of {name} is replaced: the old key is refused from now on",
        Ensured.BACK: f"{name}, whose key was revoked, has a new key",
    }
    say(words[done])


@command_of(keys, "list")
def list_keys(as_json: Json = False) -> None:
    """List the names, scopes, states and last uses of keys."""
    from tuner.store.api_key import scope_names
    from tuner.store.database import utc_now

    now = utc_now()
    with _open_keys() as store:
        found = store.list()
    rows = [
        {
            "name": key.name,
            "scope": key.scope.name.lower(),
            "urgent": key.urgent,
            "state": key.state(now).value,
            "created_at": _json_time(key.created_at),
            "last_used_at": _json_time(key.last_used_at),
            "expires_at": _json_time(key.expires_at),
            "revoked_at": _json_time(key.revoked_at),
        }
        for key in found
    ]
    headers = ("name", "scope", "state", "created", "last used", "expires", "revoked")
    cells = [
        (
            key.name,
            ",".join(scope_names(key.scope, key.urgent)),
            key.state(now).value,
            *map(_time, (key.created_at, key.last_used_at, key.expires_at, key.revoked_at)),
        )
        for key in found
    ]
    nothing = "" if rows else "there is no key: `tuner admin keys create NAME` makes a key"
    show(as_json, lambda: rows, lambda: table(headers, cells), nothing)


@command_of(keys, "revoke")
def revoke_key(
    name: KeyName,
    force: Annotated[
        bool, typer.Option("--force", help="Revoke the last key of scope admin too.")
    ] = False,
) -> None:
    """Revoke a key: it is refused within two seconds, for good."""
    with _open_keys() as store:
        store.revoke(name, last_too=force)


def _open_keys() -> AbstractContextManager[KeyStore]:
    from tuner.store.connect import database_url
    from tuner.store.keys import KeyStore

    return KeyStore.open(database_url(os.environ))


def _read_token(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {path}: {error}") from None


def _json_time(time: datetime | None) -> str | None:
    return time.isoformat(timespec="seconds") if time else None


def _time(time: datetime | None) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S}" if time else ""

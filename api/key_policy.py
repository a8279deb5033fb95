"""Which keys requests need, decided when the API starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from api.first_key import ADD, make_first_key
from api.settings import ApiSettings
from tuner.errors import BadInput
from tuner.jobs.client import KEY_VARIABLE, api_key, key_path
from tuner.jobs.web import is_loopback
from tuner.store.api_key import LOCAL, KeyState
from tuner.store.database import utc_now
from tuner.store.keys import KeyStore


@dataclass(frozen=True)
class KeyPolicy:
    """Which keys requests need, in a sentence.

    If the user has a valid key, `key_name` is its name, and `key_file` its file, if it is in one.
    """

    words: str
    key_file: Path | None = None
    key_name: str | None = None


def check_keys(
    settings: ApiSettings, host: str, environ: Mapping[str, str] = os.environ
) -> KeyPolicy:
    """Make the first key of a store that never had one, and say which keys requests need.

    Raises BadInput for `no_auth` beyond loopback or with a store that ever had a key; for an
    address beyond loopback without a valid key; and where the command line has a key already, which
    the first key must not replace.
    """
    with KeyStore.open(settings.service.database_url) as keys:
        if settings.no_auth:
            _refuse_no_auth(keys, host)
            return KeyPolicy("Requests from this machine need no key (--no-auth).")
        if not is_loopback(host):
            if keys.any():
                return KeyPolicy("Every request needs a key.")
            raise BadInput(
                f"{host} can be reached by others: make a key first, with {ADD}, or serve on "
                "127.0.0.1"
            )
        if not keys.any_ever() and make_first_key(keys, environ):
            path = key_path(environ)
            return KeyPolicy(
                f"Every request needs a key. A first one, of scope admin, is in {path}.",
                path,
                LOCAL,
            )
        return _key_policy(keys, environ)


def _refuse_no_auth(keys: KeyStore, host: str) -> None:
    if not is_loopback(host):
        raise BadInput(
            f"--no-auth is for this machine alone, and {host} can be reached by others: leave "
            "--no-auth out, or serve on 127.0.0.1"
        )
    if keys.any_ever():
        raise BadInput(
            "--no-auth is refused, because the store has or had keys: leave it out, and use a key "
            f"({ADD} makes one)"
        )


def _key_policy(keys: KeyStore, environ: Mapping[str, str]) -> KeyPolicy:
    if not keys.any():
        return KeyPolicy(f"Every request needs a key, and none is valid: {ADD} makes one.")
    try:
        mine = api_key(environ)
    except BadInput as error:
        return KeyPolicy(f"Every request needs a key. The command line has none: {error}.")
    if mine is None:
        return KeyPolicy(f"Every request needs a key. The command line has none: {ADD} makes one.")
    where = KEY_VARIABLE if environ.get(KEY_VARIABLE) else key_path(environ)
    key = keys.find(mine)
    if key is None or key.state(utc_now()) is not KeyState.VALID:
        return KeyPolicy(
            f"Every request needs a key. The one in {where} is not valid: {ADD} makes one."
        )
    file = where if isinstance(where, Path) else None
    return KeyPolicy(
        f"Every request needs a key. The command line's is in {where}.", file, key.name
    )

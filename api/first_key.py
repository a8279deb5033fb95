"""Which keys the requests to a server need: its store's, a first one made here, or none."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from api.auth import is_loopback
from api.settings import ApiSettings
from tuner.errors import BadInput, UnusableStore, UnwritableOutput
from tuner.jobs.client import KEY_VARIABLE, api_key, key_path
from tuner.store.api_key import LOCAL, KeyState
from tuner.store.database import utc_now
from tuner.store.keys import KeyStore

_ADD = "`tuner keys add NAME --scope admin`"


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
                f"{host} can be reached by others: make a key first, with {_ADD}, or serve on "
                "127.0.0.1"
            )
        if not keys.any_ever() and _make_first(keys, environ):
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
            f"({_ADD} makes one)"
        )


def _key_policy(keys: KeyStore, environ: Mapping[str, str]) -> KeyPolicy:
    if not keys.any():
        return KeyPolicy(f"Every request needs a key, and none is valid: {_ADD} makes one.")
    try:
        mine = api_key(environ)
    except BadInput as error:
        return KeyPolicy(f"Every request needs a key. The command line has none: {error}.")
    if mine is None:
        return KeyPolicy(f"Every request needs a key. The command line has none: {_ADD} makes one.")
    where = KEY_VARIABLE if environ.get(KEY_VARIABLE) else key_path(environ)
    key = keys.find(mine)
    if key is None or key.state(utc_now()) is not KeyState.VALID:
        return KeyPolicy(
            f"Every request needs a key. The one in {where} is not valid: {_ADD} makes one."
        )
    file = where if isinstance(where, Path) else None
    return KeyPolicy(
        f"Every request needs a key. The command line's is in {where}.", file, key.name
    )


def _make_first(keys: KeyStore, environ: Mapping[str, str]) -> bool:
    """Whether this process made it, and no other did meanwhile."""
    if environ.get(KEY_VARIABLE):
        raise BadInput(
            f"{KEY_VARIABLE} is set, and the store has no key: unset it, and `tuner serve` makes a "
            f"key; or make one with {_ADD}"
        )
    path, written = key_path(environ), []

    def keep(key: str) -> None:
        _write(path, key)
        written.append(path)

    try:
        return keys.add_first(keep)
    except UnusableStore:
        for one in written:
            one.unlink(missing_ok=True)
        raise


def _write(path: Path, key: str) -> None:
    """A file that its owner alone may read, whole or not at all, and never instead of another."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".api-key-")  # mode 0600
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(f"{key}\n")
                file.flush()
                os.fsync(descriptor)
            _link(name, path)
        finally:
            with contextlib.suppress(OSError):
                Path(name).unlink()
    except OSError as error:
        raise UnwritableOutput(
            f"cannot write a key to {path}: {error.strerror}; name another file in "
            f"{KEY_VARIABLE}_FILE, or make a key with {_ADD}"
        ) from None


def _link(name: str, path: Path) -> None:
    try:
        os.link(name, path)
    except FileExistsError:
        raise BadInput(
            f"{path} holds a key that is not in this store: name another file for this store's "
            f"key in {KEY_VARIABLE}_FILE, or make a key with {_ADD}, or remove the file if nobody "
            "needs it"
        ) from None

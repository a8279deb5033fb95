"""The first key of a store that never had one, in the file where the command line looks for it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tuner.errors import BadInput, UnusableStore, UnwritableOutput
from tuner.jobs.client import KEY_VARIABLE, key_path
from tuner.store.keys import KeyStore

ADD = "`tuner admin keys create NAME --scope admin`"  # for messages


def make_first_key(keys: KeyStore, environ: Mapping[str, str]) -> bool:
    """Make the key, and return whether this process did and no other one meanwhile.

    Raises BadInput if the command line has a key already, which the first key must not replace.
    """
    if environ.get(KEY_VARIABLE):
        raise BadInput(
            f"{KEY_VARIABLE} is set, and the store has no key: unset it, and `tuner serve` makes a "
            f"key; or make one with {ADD}"
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
            f"{KEY_VARIABLE}_FILE, or make a key with {ADD}"
        ) from None


def _link(name: str, path: Path) -> None:
    try:
        os.link(name, path)
    except FileExistsError:
        raise BadInput(
            f"{path} holds a key that is not in this store: name another file for this store's "
            f"key in {KEY_VARIABLE}_FILE, or make a key with {ADD}, or remove the file if nobody "
            "needs it"
        ) from None

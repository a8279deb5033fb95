"""The texts of keys and their names: which are made or refused, and what is stored of a key."""

from __future__ import annotations

import hashlib
import secrets

from tuner.errors import BadInput

PREFIX = "tuner_"  # makes keys easy to recognise in logs and repositories
MIN_LENGTH = 32  # characters of a key that was made elsewhere
# Clients of the service's own, whose names no key may have.
LOCAL = "local"  # who uses the store itself, or the key that `tuner serve` made
NIGHTLY = "nightly"  # the night
RESERVED = (LOCAL, NIGHTLY)


def new_token() -> str:
    """A key that nobody can guess."""
    return PREFIX + secrets.token_urlsafe(32)


# A fast hash is enough: nobody can guess a key's 256 random bits.
def key_hash(token: str) -> str:
    """What is stored of a key."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def checked_token(token: str) -> str:
    """A key that was made elsewhere. Raises BadInput for one that is too short or no key."""
    token = token.strip()
    if len(token) < MIN_LENGTH or not (token.isascii() and token.isprintable()) or " " in token:
        raise BadInput(f"a key has at least {MIN_LENGTH} printable characters, as random as can be")
    return token


def check_name(name: str) -> None:
    """Raises BadInput for a name that no new key may have."""
    plain = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    if not plain or len(name) > 60:
        raise BadInput(f"a key's name is letters, digits, - and _: not {name!r:.80}")
    if name in RESERVED:
        raise BadInput(f"the name {name!r} is the service's own: choose another name")

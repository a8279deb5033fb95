"""Define a key: its text and name, its scopes, and its expiry."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum, IntEnum

from sqlalchemy import RowMapping

from tuner.errors import BadInput, did_you_mean

PREFIX = "tuner_"  # makes keys easy to recognise in logs and repositories
MIN_LENGTH = 32  # characters of a key that was made elsewhere
# Clients of the service's own, whose names no key may have.
LOCAL = "local"  # who uses the store itself, or the key that `tuner serve` made
NIGHTLY = "nightly"  # the night
RESERVED = (LOCAL, NIGHTLY)


def new_token() -> str:
    """Make a key that nobody can guess."""
    return PREFIX + secrets.token_urlsafe(32)


# A fast hash is enough: nobody can guess a key's 256 random bits.
def key_hash(token: str) -> str:
    """Return the stored hash of a key."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def checked_token(token: str) -> str:
    """Return a key that was made elsewhere. Raises BadInput if it is too short or no key."""
    token = token.strip()
    if len(token) < MIN_LENGTH or not (token.isascii() and token.isprintable()) or " " in token:
        raise BadInput(f"a key has at least {MIN_LENGTH} printable characters, as random as can be")
    return token


def check_name(name: str) -> None:
    """Raise BadInput for a name that no new key may have."""
    plain = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    if not plain or len(name) > 60:
        raise BadInput(f"a key's name is letters, digits, - and _: not {name!r:.80}")
    if name in RESERVED:
        raise BadInput(f"the name {name!r} is the service's own: choose another name")


URGENT = "urgent"  # a scope beside the others: posting jobs that go before waiting jobs
LONGEST_DAYS = 3650


class Scope(IntEnum):
    """The rights of a key. Each scope includes the scopes before it."""

    READ = 1
    SUBMIT = 2  # jobs, and cancelling the jobs that the same key submitted
    ADMIN = 3  # cancelling every job, and the watch list


class KeyState(str, Enum):
    """Whether a key is valid, and why not."""

    VALID = "valid"
    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(frozen=True)
class ApiKey:
    """The stored facts about a key. Times are UTC."""

    name: str
    scope: Scope
    urgent: bool  # whether it may post urgent jobs; always for ADMIN
    created_at: datetime
    last_used_at: datetime | None  # to the hour
    expires_at: datetime | None  # None: never
    revoked_at: datetime | None

    def state(self, now: datetime) -> KeyState:
        if self.revoked_at is not None:
            return KeyState.REVOKED
        expired = self.expires_at is not None and self.expires_at <= now
        return KeyState.EXPIRED if expired else KeyState.VALID


def read_key(row: RowMapping) -> ApiKey:
    """Read the key of a row of `api_keys`."""
    scope = max(Scope[name.upper()] for name in row["scopes"] if name != URGENT)
    return ApiKey(
        name=row["name"],
        scope=scope,
        urgent=URGENT in row["scopes"] or scope is Scope.ADMIN,
        created_at=row["created_at"],
        last_used_at=row["last_used_at"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
    )


def scope_names(scope: Scope, urgent: bool) -> list[str]:
    """Return the scopes as they are stored and shown: `admin` includes `urgent`."""
    beside = [URGENT] if urgent and scope is not Scope.ADMIN else []
    return [scope.name.lower(), *beside]


def parse_scopes(text: str) -> tuple[Scope, bool]:
    """Read `read`, `submit`, `submit,urgent` or `admin`: return the scope, and whether urgent is
    given.

    Raises BadInput.
    """
    names = [scope.name.lower() for scope in Scope]
    given = [part.strip() for part in text.split(",")]
    for one in given:
        if one not in (*names, URGENT):
            near = did_you_mean(one, [*names, URGENT])
            raise BadInput(
                f"unknown scope {one!r}{near}; the scopes are {', '.join(names)}, and urgent "
                "beside submit: ",
                cli="--scope submit,urgent",
                api="submit,urgent",
            )
    scopes: Sequence[Scope] = [Scope[one.upper()] for one in given if one != URGENT]
    if URGENT in given and max(scopes, default=Scope.READ) < Scope.SUBMIT:
        text = "urgent is for keys that submit jobs: "
        raise BadInput(text, cli="--scope submit,urgent", api="submit,urgent")
    return max(scopes), URGENT in given


def parse_expiry(text: str, now: datetime) -> datetime:
    """Read `90d`, days from now, or a date like 2027-01-31, at whose beginning (UTC) the key ends.

    Raises BadInput for another text, and a time that has passed.
    """
    if days := re.fullmatch(r"([0-9]{1,4})d", text):
        if 1 <= int(days[1]) <= LONGEST_DAYS:
            return now + timedelta(days=int(days[1]))
    elif re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        try:
            ends = datetime.fromisoformat(text).replace(tzinfo=timezone.utc)
        except ValueError as error:
            raise BadInput(f"{text} is no date: {error}") from None
        if ends > now:
            return ends
        raise BadInput(f"{text} has begun already (UTC): name a later date")
    forms = f"after 1d to {LONGEST_DAYS}d, or on a date like 2027-01-31"
    raise BadInput(f"a key expires {forms}: not {text!r}")

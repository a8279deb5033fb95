"""The keys of the service's clients. A key is shown once, and stored as a hash."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum

from sqlalchemy import ColumnElement, Engine, RowMapping, exists, select, true, update

from tuner.errors import BadInput, did_you_mean
from tuner.store.database import Clock, Database, insert_into, utc_now
from tuner.store.job_tables import api_keys

PREFIX = "tuner_"  # makes keys easy to recognise in logs and repositories
MIN_LENGTH = 32  # characters of a key that was made elsewhere
USED_EVERY = timedelta(hours=1)  # the last use is stored at most this often


class Scope(IntEnum):
    """What a key allows. Each scope includes the ones before it."""

    READ = 1
    SUBMIT = 2  # jobs, and cancelling the jobs that the same key submitted
    ADMIN = 3  # cancelling every job, and the watch list


@dataclass(frozen=True)
class ApiKey:
    """What is stored about a key. Times are UTC."""

    name: str
    scope: Scope
    created_at: datetime
    last_used_at: datetime | None  # to the hour
    revoked_at: datetime | None


class KeyStore(Database):
    """Stores keys. Methods are single transactions; a failing database raises UnusableStore."""

    def __init__(self, engine: Engine, clock: Clock = utc_now) -> None:
        super().__init__(engine)
        self._clock = clock

    def add(self, name: str, scope: Scope, token: str | None = None) -> str:
        """Store a new key of that name and return it. It cannot be read again later.

        `token` is a key that was made elsewhere. If it is stored with that name and scope already,
        nothing changes. Raises BadInput for a name or a key that is taken, and a key that is too
        short.
        """
        _check_name(name)
        token = _checked(token) if token is not None else PREFIX + secrets.token_urlsafe(32)
        row = {
            "name": name,
            "key_hash": _hash(token),
            "scopes": [scope.name.lower()],
            "created_at": self._clock(),
        }
        with self._write() as connection:
            insert = insert_into(connection, api_keys).on_conflict_do_nothing()
            if connection.execute(insert, row).rowcount:
                return token
            mine = select(api_keys).where(api_keys.c.key_hash == row["key_hash"])
            found = connection.execute(mine).mappings().one_or_none()
        if found is None:
            raise BadInput(f"there is, or was, a key named {name!r} already: choose another name")
        if found["revoked_at"] is not None:
            raise BadInput(
                f"this key was revoked, under the name {found['name']!r}: make a new one"
            )
        if (found["name"], found["scopes"]) != (name, row["scopes"]):
            stored = _read(found).scope.name.lower()
            raise BadInput(
                f"this key is stored already, as {found['name']!r} with the scope {stored}: "
                "make a new one, or give it that name and scope"
            )
        return token

    def find(self, token: str) -> ApiKey | None:
        """The key, unless it is unknown or revoked. This counts as a use."""
        query = select(api_keys).where(
            api_keys.c.key_hash == _hash(token), api_keys.c.revoked_at.is_(None)
        )
        with self._read() as connection:
            row = connection.execute(query).mappings().one_or_none()
        if row is None:
            return None
        key, now = _read(row), self._clock()
        if key.last_used_at is None or now - key.last_used_at >= USED_EVERY:
            with self._write() as connection:
                mine = update(api_keys).where(api_keys.c.id == row["id"])
                connection.execute(mine.values(last_used_at=now))
        return key

    def any(self) -> bool:
        """Whether there is a key that was not revoked."""
        return self._has(api_keys.c.revoked_at.is_(None))

    def any_ever(self) -> bool:
        """Whether there was ever a key: one that was revoked counts too."""
        return self._has(true())

    def list(self) -> Sequence[ApiKey]:
        """All keys, also the revoked ones, in the order in which they were made."""
        with self._read() as connection:
            rows = connection.execute(select(api_keys).order_by(api_keys.c.id)).mappings()
            return [_read(row) for row in rows]

    def revoke(self, name: str, *, last_too: bool = False) -> None:
        """Revoke a key, at once and for good.

        Raises BadInput where no valid key has that name, and without `last_too` for the last key
        of scope admin: without it, nobody can change the watch list over the API.
        """
        not_revoked = api_keys.c.revoked_at.is_(None)
        with self._write() as connection:
            rows = connection.execute(select(api_keys).where(not_revoked)).mappings()
            valid = {key.name: key for key in map(_read, rows)}
            if name not in valid:
                raise BadInput(f"no valid key is named {name!r}{did_you_mean(name, valid)}")
            admins = [key.name for key in valid.values() if key.scope is Scope.ADMIN]
            if admins == [name] and not last_too:
                raise BadInput(
                    f"{name} is the last key of scope admin: make another first, with "
                    "`tuner keys add NAME --scope admin`, or add --force"
                )
            mine = update(api_keys).where(api_keys.c.name == name, not_revoked)
            connection.execute(mine.values(revoked_at=self._clock()))

    def _has(self, condition: ColumnElement[bool]) -> bool:
        query = select(exists(select(api_keys.c.id).where(condition)))
        with self._read() as connection:
            return bool(connection.execute(query).scalar_one())


def parse_scope(text: str) -> Scope:
    """Read `read`, `submit` or `admin`. Raises BadInput."""
    names = [scope.name.lower() for scope in Scope]
    if text not in names:
        raise BadInput(f"unknown scope {text!r}{did_you_mean(text, names)}")
    return Scope[text.upper()]


# A fast hash is enough: nobody can guess a key's 256 random bits.
def _hash(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def _checked(token: str) -> str:
    token = token.strip()
    if len(token) < MIN_LENGTH or not (token.isascii() and token.isprintable()) or " " in token:
        raise BadInput(f"a key has at least {MIN_LENGTH} printable characters, as random as can be")
    return token


def _check_name(name: str) -> None:
    plain = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    if not plain or len(name) > 60 or name in ("local", "nightly"):
        raise BadInput(f"a key's name is letters, digits, - and _: not {name!r:.80}")


def _read(row: RowMapping) -> ApiKey:
    return ApiKey(
        name=row["name"],
        scope=max(Scope[scope.upper()] for scope in row["scopes"]),
        created_at=row["created_at"],
        last_used_at=row["last_used_at"],
        revoked_at=row["revoked_at"],
    )

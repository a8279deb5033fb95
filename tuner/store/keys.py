"""Store the keys of the service's clients, and the sessions of browsers, which stand for keys.

A key is shown once, and stored as a hash. A session ends with its key.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    ScalarSelect,
    delete,
    exists,
    func,
    or_,
    select,
    text,
    true,
    update,
)

from tuner.errors import BadInput, LastAdmin, UnknownKey, UnusableStore, did_you_mean
from tuner.store.api_key import (
    LOCAL,
    ApiKey,
    KeyState,
    Scope,
    check_name,
    checked_token,
    key_hash,
    new_token,
    read_key,
    scope_names,
)
from tuner.store.database import Queries, insert_into
from tuner.store.tables import api_keys, sessions

__all__ = ["ApiKey", "Ensured", "KeyState", "KeyStore", "Scope"]

USED_EVERY = timedelta(hours=1)  # the last use is stored at most this often
_UNREVOKED = api_keys.c.revoked_at.is_(None)


class Ensured(Enum):
    """The change that `KeyStore.ensure` made."""

    NOTHING = "nothing"
    ADDED = "added"
    CHANGED = "changed"  # its scopes
    REPLACED = "replaced"  # another token had the name until now
    BACK = "back"  # the name was revoked


class KeyStore(Queries):
    """Stores keys. Methods are single transactions; a failing database raises UnusableStore."""

    def add(
        self,
        name: str,
        scope: Scope,
        token: str | None = None,
        *,
        urgent: bool = False,
        expires_at: datetime | None = None,
    ) -> str:
        """Store a new key of that name and return it. It cannot be read again later.

        `token` is a key that was made elsewhere. If it is stored with that name and scope already,
        nothing changes. Raises BadInput for a name or a key that is taken, and a key that is too
        short.
        """
        check_name(name)
        token = checked_token(token) if token is not None else new_token()
        row = self._row(name, token, scope, urgent, expires_at)
        with self._write() as connection:
            if _insert(connection, row):
                return token
            found = _by_hash(connection, row)
        if found is None:
            raise BadInput(f"there is, or was, a key named {name!r} already: choose another name")
        self._refuse_ended(found)
        if (found["name"], found["scopes"]) != (name, row["scopes"]):
            raise BadInput(
                f"this key is stored already, as {found['name']!r} with the scope "
                f"{','.join(found['scopes'])}: make a new key, or give it that name and scope"
            )
        return token

    def add_first(self, keep: Callable[[str], None]) -> bool:
        """Make the key LOCAL, of scope admin, if there was never a key. Say whether it was made.

        `keep` puts the new key where its user finds it. If it raises, no key is stored.
        """
        token = new_token()
        with self._write_alone() as connection:
            if connection.execute(select(exists(select(api_keys.c.id)))).scalar_one():
                return False
            _insert(connection, self._row(LOCAL, token, Scope.ADMIN))
            keep(token)
        return True

    def ensure(self, name: str, scope: Scope, token: str, *, urgent: bool = False) -> Ensured:
        """Make `token` the valid key of that name and scope. Again: nothing changes.

        A token that had the name until then is revoked. Raises BadInput for a token that was
        revoked, has expired or has another name, and if no key of scope admin would remain.
        """
        check_name(name)
        row = self._row(name, checked_token(token), scope, urgent)
        with self._write_alone() as connection:
            if _insert(connection, row):
                return Ensured.ADDED
            if found := _by_hash(connection, row):
                return self._ensure_scopes(connection, found, row)
            self._refuse_last_admin(connection, row)
            mine = select(api_keys).where(api_keys.c.name == name)
            old = connection.execute(mine).mappings().one()
            self._put_aside(connection, old, row["created_at"])
            _insert(connection, row)
        return Ensured.REPLACED if old["revoked_at"] is None else Ensured.BACK

    def _ensure_scopes(
        self, connection: Connection, found: RowMapping, row: Mapping[str, Any]
    ) -> Ensured:
        self._refuse_ended(found)
        if found["name"] != row["name"]:
            raise BadInput(f"this key is stored already, as {found['name']!r}: make a new key")
        if found["scopes"] == row["scopes"]:
            return Ensured.NOTHING
        self._refuse_last_admin(connection, row)
        mine = update(api_keys).where(api_keys.c.id == found["id"])
        connection.execute(mine.values(scopes=row["scopes"]))
        return Ensured.CHANGED

    def find(self, token: str) -> ApiKey | None:
        """Return the key, unless it is unknown or revoked; it may have expired. Counts as a use."""
        query = select(api_keys).where(api_keys.c.key_hash == key_hash(token), _UNREVOKED)
        with self._read() as connection:
            row = connection.execute(query).mappings().one_or_none()
        if row is None:
            return None
        key, now = read_key(row), self._now()
        unused = key.last_used_at is None or now - key.last_used_at >= USED_EVERY
        if unused and key.state(now) is KeyState.VALID:
            # A full disk must not stop those who only read.
            with contextlib.suppress(UnusableStore), self._write() as connection:
                mine = update(api_keys).where(api_keys.c.id == row["id"])
                connection.execute(mine.values(last_used_at=now))
        return key

    def hashes(self) -> frozenset[str]:
        """Return the hashes (`key_hash`) of all valid keys."""
        with self._read() as connection:
            found = connection.execute(select(api_keys.c.key_hash).where(self._valid()))
            return frozenset(found.scalars())

    def any(self) -> bool:
        """Say whether there is a valid key."""
        return self._has(self._valid())

    def any_ever(self) -> bool:
        """Say whether there was ever a key: a revoked or expired key counts too."""
        return self._has(true())

    def list(self) -> Sequence[ApiKey]:
        """Return all keys, also revoked keys, in the order in which they were made."""
        with self._read() as connection:
            rows = connection.execute(select(api_keys).order_by(api_keys.c.id)).mappings()
            return [read_key(row) for row in rows]

    def revoke(self, name: str, *, last_too: bool = False) -> None:
        """Revoke a key, at once and for good.

        Raises BadInput if no unrevoked key has that name, and without `last_too` for the last valid
        key of scope admin: without it, nobody can change the watch list over the API.
        """
        with self._write_alone() as connection:
            names = connection.execute(select(api_keys.c.name).where(_UNREVOKED)).scalars().all()
            if name not in names:
                raise UnknownKey(f"no valid key is named {name!r}{did_you_mean(name, names)}")
            if not last_too and self._admins(connection) == [name]:
                raise LastAdmin(_last_admin(name), cli=", or add --force")
            mine = update(api_keys).where(api_keys.c.name == name, _UNREVOKED)
            connection.execute(mine.values(revoked_at=self._now()))

    def rotate(self, name: str) -> str:
        """Give a valid key a new secret and return it; the old secret is refused from now on.

        Its scopes and its end stay. Raises BadInput if no valid key has that name, and for the key
        of this machine, whose secret is in a file.
        """
        if name == LOCAL:
            raise BadInput(f"the secret of {name!r} is in a file of the server: it stays")
        token = new_token()
        with self._write_alone() as connection:
            valid = select(api_keys).where(self._valid())
            found = {row["name"]: row for row in connection.execute(valid).mappings()}
            if name not in found:
                raise UnknownKey(f"no valid key is named {name!r}{did_you_mean(name, list(found))}")
            old = read_key(found[name])
            self._put_aside(connection, found[name], self._now())
            _insert(connection, self._row(name, token, old.scope, old.urgent, old.expires_at))
        return token

    def _put_aside(self, connection: Connection, old: RowMapping, now: datetime) -> None:
        """Revoke a key whose name another key gets. Its token stays known, and so revoked.

        No key can have the name that it then gets.
        """
        put_aside = {
            "name": f"{old['name']}#{old['id']}",
            "revoked_at": func.coalesce(api_keys.c.revoked_at, now),
        }
        connection.execute(update(api_keys).where(api_keys.c.id == old["id"]).values(put_aside))

    @contextlib.contextmanager
    def _write_alone(self) -> Iterator[Connection]:
        """Open `_write`, while no other process changes keys. On SQLite, none ever does
        meanwhile.
        """
        with self._write() as connection:
            if connection.dialect.name == "postgresql":
                lock = f"LOCK TABLE {api_keys.name} IN SHARE ROW EXCLUSIVE MODE"
                connection.execute(text(lock))
            yield connection

    def _row(
        self,
        name: str,
        token: str,
        scope: Scope,
        urgent: bool = False,
        expires_at: datetime | None = None,
    ) -> dict[str, Any]:
        return {
            "name": name,
            "key_hash": key_hash(token),
            "scopes": scope_names(scope, urgent),
            "created_at": self._now(),
            "expires_at": expires_at,
        }

    def _refuse_ended(self, row: RowMapping) -> None:
        key = read_key(row)
        state = key.state(self._now())
        if state is not KeyState.VALID:
            name = key.name.partition("#")[0]
            was = "was revoked" if state is KeyState.REVOKED else "expired"
            script = "; for Docker Compose: sh docker/make_secrets.sh rotate admin_key"
            raise BadInput(f"this key of {name!r} {was}: make a new key", cli=script)

    def _refuse_last_admin(self, connection: Connection, row: Mapping[str, Any]) -> None:
        name = row["name"]
        if "admin" not in row["scopes"] and self._admins(connection) == [name]:
            raise BadInput(_last_admin(name))

    def _admins(self, connection: Connection) -> Sequence[str]:
        rows = connection.execute(select(api_keys).where(self._valid())).mappings()
        return [key.name for key in map(read_key, rows) if key.scope is Scope.ADMIN]

    def _valid(self) -> ColumnElement[bool]:
        ends = api_keys.c.expires_at
        return _UNREVOKED & or_(ends.is_(None), ends > self._now())

    def _has(self, condition: ColumnElement[bool]) -> bool:
        query = select(exists(select(api_keys.c.id).where(condition)))
        with self._read() as connection:
            return bool(connection.execute(query).scalar_one())


def _insert(connection: Connection, row: Mapping[str, Any]) -> bool:
    """Say whether the row was added: not if its name or its hash is taken."""
    insert = insert_into(connection, api_keys).on_conflict_do_nothing()
    return bool(connection.execute(insert, row).rowcount)


def _by_hash(connection: Connection, row: Mapping[str, Any]) -> RowMapping | None:
    mine = select(api_keys).where(api_keys.c.key_hash == row["key_hash"])
    return connection.execute(mine).mappings().one_or_none()


def _last_admin(name: str) -> str:
    return (
        f"{name} is the last key of scope admin: make another first, with "
        "`tuner admin keys create NAME --scope admin`"
    )


LASTS = timedelta(days=7)  # from the log in, even if the session is used
IDLE = timedelta(days=1)  # and without a request no longer than that


@dataclass(frozen=True)
class Session:
    """A browser that is logged in."""

    began_at: datetime
    ends_at: datetime  # unless it is used again
    own: bool  # whether it is the session that asks


class SessionStore(Queries):
    """Stores sessions. Methods are single transactions; a failing database raises UnusableStore."""

    def start(self, name: str) -> str:
        """Begin a session of the unrevoked key of that name. Returns the token for its cookie.

        Sessions that have expired are deleted. Raises BadInput if no key has that name.
        """
        token, now = secrets.token_urlsafe(32), self._now()
        mine = select(api_keys.c.id).where(api_keys.c.name == name, api_keys.c.revoked_at.is_(None))
        with self._write() as connection:
            connection.execute(delete(sessions).where(sessions.c.expires_at <= now))
            key_id = connection.execute(mine).scalar_one_or_none()
            if key_id is None:
                raise BadInput(f"no valid key is named {name!r}: log in with another key")
            row = {
                "token_hash": key_hash(token),
                "key_id": key_id,
                "created_at": now,
                "expires_at": now + IDLE,
            }
            connection.execute(insert_into(connection, sessions), row)
        return token

    def find(self, token: str) -> ApiKey | None:
        """Return the key of a session, unless the session has ended or the key was revoked.

        The key may have expired. Counts as a use of the session.
        """
        mine = sessions.c.token_hash == key_hash(token)
        query = (
            select(
                api_keys,
                sessions.c.created_at.label("began_at"),
                sessions.c.expires_at.label("ends_at"),
            )
            .join(sessions, sessions.c.key_id == api_keys.c.id)
            .where(mine, self._valid())
        )
        with self._read() as connection:
            row = connection.execute(query).mappings().one_or_none()
        if row is None:
            return None
        ends_at = min(row["began_at"] + LASTS, self._now() + IDLE)
        if ends_at - row["ends_at"] >= USED_EVERY:
            # A full disk must not stop those who only read.
            with contextlib.suppress(UnusableStore), self._write() as connection:
                connection.execute(update(sessions).where(mine).values(expires_at=ends_at))
        return read_key(row)

    def hashes(self) -> frozenset[str]:
        """Return the hashes (`key_hash`) of all sessions that have not ended, and whose keys have
        not.
        """
        query = select(sessions.c.token_hash).join(api_keys, sessions.c.key_id == api_keys.c.id)
        key_valid = api_keys.c.expires_at.is_(None) | (api_keys.c.expires_at > self._now())
        with self._read() as connection:
            found = connection.execute(query.where(self._valid(), key_valid))
            return frozenset(found.scalars())

    def of_same_key(self, token: str) -> Sequence[Session]:
        """Return the sessions of the key that a session stands for, the newest first."""
        mine = sessions.c.token_hash == key_hash(token)
        query = (
            select(sessions)
            .where(sessions.c.key_id == _key_of(token), sessions.c.expires_at > self._now())
            .order_by(sessions.c.created_at.desc(), sessions.c.token_hash)
            .add_columns(mine.label("own"))
        )
        with self._read() as connection:
            return [
                Session(row.created_at, row.expires_at, bool(row.own))
                for row in connection.execute(query)
            ]

    def end_others(self, token: str) -> int:
        """End the other sessions of the key that a session stands for; return how many."""
        others = sessions.c.token_hash != key_hash(token)
        with self._write() as connection:
            mine = delete(sessions).where(sessions.c.key_id == _key_of(token), others)
            return connection.execute(mine).rowcount

    def end(self, token: str) -> None:
        """End a session. A session that has ended stays so."""
        with self._write() as connection:
            mine = sessions.c.token_hash == key_hash(token)
            connection.execute(delete(sessions).where(mine))

    def _valid(self) -> ColumnElement[bool]:
        return api_keys.c.revoked_at.is_(None) & (sessions.c.expires_at > self._now())


def _key_of(token: str) -> ScalarSelect[int]:
    """Return the id of the key that a session stands for."""
    mine = sessions.c.token_hash == key_hash(token)
    return select(sessions.c.key_id).where(mine).scalar_subquery()

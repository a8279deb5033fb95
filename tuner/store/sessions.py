"""Sessions of browsers. A session stands for a key, and ends with it."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, ScalarSelect, delete, select, update

from tuner.errors import BadInput, UnusableStore
from tuner.store.api_key import ApiKey, key_hash, read_key
from tuner.store.database import Queries, insert_into
from tuner.store.tables import api_keys, sessions

LASTS = timedelta(days=7)  # from the log in, whatever is done meanwhile
IDLE = timedelta(days=1)  # and without a request no longer than that
USED_EVERY = timedelta(hours=1)  # a use is stored at most this often


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

        Sessions that have expired are deleted. Raises BadInput where no key has that name.
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
        """The key of a session, unless the session has ended or the key was revoked.

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
        """The hashes (`key_hash`) of all sessions that have not ended, and whose keys have not."""
        query = select(sessions.c.token_hash).join(api_keys, sessions.c.key_id == api_keys.c.id)
        key_valid = api_keys.c.expires_at.is_(None) | (api_keys.c.expires_at > self._now())
        with self._read() as connection:
            found = connection.execute(query.where(self._valid(), key_valid))
            return frozenset(found.scalars())

    def of_same_key(self, token: str) -> Sequence[Session]:
        """The sessions of the key that a session stands for, the newest first."""
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
        """End the other sessions of the key that a session stands for; returns how many."""
        others = sessions.c.token_hash != key_hash(token)
        with self._write() as connection:
            mine = delete(sessions).where(sessions.c.key_id == _key_of(token), others)
            return connection.execute(mine).rowcount

    def end(self, token: str) -> None:
        """End a session. One that has ended stays so."""
        with self._write() as connection:
            mine = sessions.c.token_hash == key_hash(token)
            connection.execute(delete(sessions).where(mine))

    def _valid(self) -> ColumnElement[bool]:
        return api_keys.c.revoked_at.is_(None) & (sessions.c.expires_at > self._now())


def _key_of(token: str) -> ScalarSelect[int]:
    """The id of the key that a session stands for."""
    mine = sessions.c.token_hash == key_hash(token)
    return select(sessions.c.key_id).where(mine).scalar_subquery()

"""The watches that were added over the API, and the nightly rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date, datetime, timedelta
from typing import Any

from sqlalchemy import Select, Table, and_, delete, or_, select, tuple_, update

from tuner.jobs.job import iso
from tuner.store.database import Queries, insert_into
from tuner.store.tables import nightly_runs, watches

GIVEN_UP = timedelta(minutes=5)  # a round that is unfinished after so long was killed


@dataclass(frozen=True)
class StoredWatch:
    """A watch that was added over the API."""

    id: int
    watch: Mapping[str, Any]  # as a table of nightly.toml
    client: str
    created_at: datetime

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "created_at": iso(self.created_at)}


@dataclass(frozen=True)
class Night:
    """One round of a schedule."""

    id: int
    schedule: str
    date: date
    summary: Mapping[str, Any] | None  # None: not finished
    started_at: datetime
    finished_at: datetime | None

    def as_json(self) -> dict[str, Any]:
        times = {"started_at": iso(self.started_at), "finished_at": iso(self.finished_at)}
        row = {"schedule": self.schedule, "date": self.date.isoformat(), "summary": self.summary}
        return {**row, **times}


def _columns(table: Table, kind: type[StoredWatch | Night]) -> Select[Any]:
    return select(*(table.c[field.name] for field in fields(kind)))


_WATCHES = _columns(watches, StoredWatch).order_by(watches.c.id)


class NightStore(Queries):
    """Stores watches and rounds, each method in one transaction. Raises UnusableStore."""

    def begin(self, schedule: str, day: date, *, again: bool = False) -> bool:
        """Whether the caller must do the round: no process has begun it, or that one was killed.

        With `again`, a round that was finished is to be done once more.
        """
        with self._write() as connection:
            now = self._now()
            row = {"schedule": schedule, "date": day, "started_at": now}
            insert = insert_into(connection, nightly_runs).on_conflict_do_nothing()
            if connection.execute(insert, row).rowcount:
                return True
            finished_at = nightly_runs.c.finished_at
            killed = and_(finished_at.is_(None), nightly_runs.c.started_at < now - GIVEN_UP)
            free = or_(killed, finished_at.is_not(None)) if again else killed
            taken = (
                update(nightly_runs)
                .where(*_round(schedule, day), free)
                .values(started_at=now, finished_at=None, summary=None)
            )
            return connection.execute(taken).rowcount == 1

    def finish(self, schedule: str, day: date, summary: Mapping[str, Any]) -> None:
        """Store what the round did."""
        values = {"summary": dict(summary), "finished_at": self._now()}
        with self._write() as connection:
            mine = update(nightly_runs).where(*_round(schedule, day))
            connection.execute(mine.values(**values))

    def last(self, schedule: str | None = None) -> Night | None:
        """The newest round of a schedule, or of all; None before the first."""
        return next(iter(self.nights(schedule, limit=1)), None)

    def night(self, schedule: str, day: date) -> Night | None:
        """The round of a day; None if there was none."""
        query = _columns(nightly_runs, Night).where(*_round(schedule, day))
        with self._read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else Night(*row)

    def nights(
        self,
        schedule: str | None = None,
        after: tuple[date, int] | None = None,
        limit: int = 50,
    ) -> Sequence[Night]:
        """A page of rounds, the newest first; `after` is the last page's last (date, id)."""
        row = nightly_runs.c
        query = _columns(nightly_runs, Night).order_by(row.date.desc(), row.id.desc()).limit(limit)
        if schedule is not None:
            query = query.where(row.schedule == schedule)
        if after is not None:
            query = query.where(tuple_(row.date, row.id) < after)
        with self._read() as connection:
            return [Night(*found) for found in connection.execute(query)]

    def watch(self, watch_id: int) -> StoredWatch | None:
        """The watch with that id, if there is one."""
        with self._read() as connection:
            row = connection.execute(_WATCHES.where(watches.c.id == watch_id)).one_or_none()
        return None if row is None else StoredWatch(*row)

    def watches(self) -> Sequence[StoredWatch]:
        """The watches that were added, in order of their ids."""
        with self._read() as connection:
            return [StoredWatch(*row) for row in connection.execute(_WATCHES)]

    def add_watch(self, watch: Mapping[str, Any], key: str, client: str) -> StoredWatch:
        """Add a watch and return it. A stored watch with the same key is returned as it is."""
        with self._write() as connection:
            row = {
                "watch": dict(watch),
                "watch_key": key,
                "client": client,
                "created_at": self._now(),
            }
            connection.execute(insert_into(connection, watches).on_conflict_do_nothing(), row)
            query = _WATCHES.where(watches.c.watch_key == key)
            return StoredWatch(*connection.execute(query).one())

    def remove_watch(self, watch_id: int) -> bool:
        """Remove a watch. Returns whether there was one."""
        with self._write() as connection:
            removed = connection.execute(delete(watches).where(watches.c.id == watch_id))
            return removed.rowcount == 1

    def hide(self, watch_id: int, problem: str, *, hidden: bool) -> StoredWatch | None:
        """Leave a problem out of a watch, or take it in again; None if there is no such watch."""
        row = _WATCHES.where(watches.c.id == watch_id)
        with self._write() as connection:
            found = connection.execute(row.with_for_update()).one_or_none()
            if found is None:
                return None
            stored = StoredWatch(*found)
            others = [one for one in stored.watch.get("hidden", ()) if one != problem]
            watch = {**stored.watch, "hidden": sorted([*others, *[problem] * hidden])}
            changed = update(watches).where(watches.c.id == watch_id).values(watch=watch)
            connection.execute(changed)
            return replace(stored, watch=watch)


def _round(schedule: str, day: date) -> tuple[Any, Any]:
    return nightly_runs.c.schedule == schedule, nightly_runs.c.date == day

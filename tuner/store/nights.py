"""Store nights and watches."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Select, Table, delete, func, select, tuple_, update

from tuner.jobs.job import iso, read_time
from tuner.store.database import Queries, insert_into
from tuner.store.tables import IS_COALESCIBLE, jobs, nightly_runs, watches

AT_ONCE = 500  # rows that a statement names: SQLite takes no more than a thousand
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
class Round:
    """A round of a night: one process compares the watch list with the store and posts jobs."""

    began: datetime
    watch_list: str = ""  # the name of a file's content; "" is part of every list
    forced: bool = False  # somebody asked for it at that time: it takes no night's place
    error: str = ""  # the class of the error that stopped it


@dataclass(frozen=True)
class Night:
    """A night of a schedule, with all its rounds."""

    id: int
    schedule: str
    date: date
    summary: Mapping[str, Any] | None  # None: not finished
    started_at: datetime
    finished_at: datetime | None

    def done_at(self, watch_list: str = "") -> datetime | None:
        """Return when the night was done with that content of a file, or with any if it is "".

        None: it is to be done, or a round is under way. Forced rounds do no night.
        """
        if self.finished_at is None:
            return None
        # The summary of an earlier release has no rounds, and is the summary of one round.
        of_before = {"error": "", "watch_list": watch_list, "ended": iso(self.finished_at)}
        ended = [
            read_time(one["ended"])
            for one in (self.summary or {}).get("rounds", [of_before])
            if not (one["error"] or one.get("forced")) and watch_list in ("", one["watch_list"])
        ]
        return max(ended, default=None)

    def as_json(self) -> dict[str, Any]:
        times = {"started_at": iso(self.started_at), "finished_at": iso(self.finished_at)}
        row = {"schedule": self.schedule, "date": self.date.isoformat(), "summary": self.summary}
        return {**row, **times}


@dataclass(frozen=True)
class NightCounts:
    """A night in a list."""

    id: int
    schedule: str
    date: date
    started_at: datetime
    finished_at: datetime | None
    counts: Mapping[str, int] | None  # of its summary's lists, and `watched`; None: not finished

    def as_json(self) -> dict[str, Any]:
        times = {"started_at": iso(self.started_at), "finished_at": iso(self.finished_at)}
        return {**vars(self), "date": self.date.isoformat(), **times}


# Of a night's record, the lists that grow with each of its rounds. The last round says the rest.
_GROWING = ("missing", "stale", "revalidated", "submitted", "waiting", "rounds")


_COUNTED = (*_GROWING, "errors", "not_submitted")


def _counts(watched: int | None, *lengths: int | None) -> dict[str, int] | None:
    if watched is None:
        return None
    return {"watched": watched, **{n: many or 0 for n, many in zip(_COUNTED, lengths, strict=True)}}


def _added(record: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Add the work of another round to a night's record."""
    whole = {**record, **new}
    for name in _GROWING:
        known: dict[str, Any] = {}
        for one in (*record.get(name, ()), *new.get(name, ())):
            known.setdefault(_identity(one), one)
        whole[name] = list(known.values())
    queued = set(whole["submitted"])
    whole["waiting"] = [one for one in whole["waiting"] if one not in queued]
    return whole


def _identity(one: str | Mapping[str, Any]) -> str:
    return one if isinstance(one, str) else one.get("job_id") or json.dumps(one, sort_keys=True)


def _columns(table: Table, kind: type[StoredWatch | Night]) -> Select[Any]:
    return select(*(table.c[field.name] for field in fields(kind)))


_WATCHES = _columns(watches, StoredWatch).order_by(watches.c.id)


class NightStore(Queries):
    """Stores watches and rounds, each method in a transaction. Raises UnusableStore."""

    def begin(
        self, schedule: str, day: date, watch_list: str = "", *, again: bool = False
    ) -> datetime | None:
        """Return since when the caller does a round of that night; None if there is none to do.

        A round is to be done if no process does a round that may still end, and the night was not
        done with that `watch_list`. With `again`, a round is to be done even if it was.
        """
        with self._write() as connection:
            now = self._now(connection)
            row = {"schedule": schedule, "date": day, "started_at": now}
            insert = insert_into(connection, nightly_runs).on_conflict_do_nothing()
            if connection.execute(insert, row).rowcount:
                return now
            night = _locked(connection, schedule, day)
            if night.finished_at is None:
                free = night.started_at < now - GIVEN_UP
            else:
                free = again or night.done_at(watch_list) is None
            if not free:
                return None
            taken = update(nightly_runs).where(*_round(schedule, day))
            connection.execute(taken.values(started_at=now, finished_at=None))
            return now

    def finish(
        self,
        schedule: str,
        day: date,
        done: Round,
        summary: Mapping[str, Any],
    ) -> None:
        """Add a round and its work to the night's record.

        The night has ended, unless another process took this round for killed and does it again.
        """
        with self._write() as connection:
            night, now = _locked(connection, schedule, day), self._now(connection)
            mine = {**vars(done), "began": iso(done.began), "ended": iso(now)}
            first = {"schedule": schedule, "date": day.isoformat(), "watched": 0}
            new = {**summary, "rounds": [mine]}
            values: dict[str, Any] = {"summary": _added(night.summary or first, new)}
            if night.started_at == done.began:
                values["finished_at"] = now
            connection.execute(update(nightly_runs).where(*_round(schedule, day)).values(**values))

    def last(self, schedule: str | None = None) -> Night | None:
        """Return the newest round of a schedule, or of all; None before the first."""
        return next(iter(self.nights(schedule, limit=1)), None)

    def night(self, schedule: str, day: date) -> Night | None:
        """Return the round of a day; None if there was none."""
        query = _columns(nightly_runs, Night).where(*_round(schedule, day))
        with self._read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else Night(*row)

    def nights(
        self, schedule: str | None = None, after: tuple[date, int] | None = None, limit: int = 50
    ) -> Sequence[Night]:
        """Return a page of nights, the newest first; `after` is the last page's last (date, id)."""
        query = _newest(_columns(nightly_runs, Night), after, limit)
        if schedule is not None:
            query = query.where(nightly_runs.c.schedule == schedule)
        with self._read() as connection:
            return [Night(*found) for found in connection.execute(query)]

    def counted(
        self, after: tuple[date, int] | None = None, limit: int = 50
    ) -> Sequence[NightCounts]:
        """Return nights as `nights`, with the lengths of the lists in the summaries, which may be
        long.
        """
        names = "id", "schedule", "date", "started_at", "finished_at"
        lists = (func.json_array_length(nightly_runs.c.summary[name]) for name in _COUNTED)
        watched = nightly_runs.c.summary["watched"].as_integer()
        row = (nightly_runs.c[name] for name in names)
        query = _newest(select(*row, watched, *lists), after, limit)
        with self._read() as connection:
            rows = connection.execute(query).all()
        return [
            NightCounts(**dict(zip(names, one, strict=False)), counts=_counts(*one[len(names) :]))
            for one in rows
        ]

    def last_posted(self, keys: Sequence[str]) -> dict[str, tuple[datetime, bool]]:
        """Return when a request with each of these keys was last posted, and whether it is
        unfinished.
        """
        unfinished = func.count(jobs.c.id).filter(IS_COALESCIBLE)
        query = select(jobs.c.request_key, func.max(jobs.c.created_at), unfinished)
        query = query.group_by(jobs.c.request_key)
        found: dict[str, tuple[datetime, bool]] = {}
        with self._read() as connection:
            for some in in_parts(keys):
                rows = connection.execute(query.where(jobs.c.request_key.in_(some)))
                found |= {key: (last, count > 0) for key, last, count in rows}
        return found

    def watch(self, watch_id: int) -> StoredWatch | None:
        """Return the watch with that id; None if there is none."""
        with self._read() as connection:
            row = connection.execute(_WATCHES.where(watches.c.id == watch_id)).one_or_none()
        return None if row is None else StoredWatch(*row)

    def watches(self) -> Sequence[StoredWatch]:
        """Return the watches that were added, in order of their ids."""
        with self._read() as connection:
            return [StoredWatch(*row) for row in connection.execute(_WATCHES)]

    def add_watch(self, watch: Mapping[str, Any], key: str, client: str) -> StoredWatch:
        """Add a watch and return it. A stored watch with the same key is returned as it is."""
        with self._write() as connection:
            row = {
                "watch": dict(watch),
                "watch_key": key,
                "client": client,
                "created_at": self._now(connection),
            }
            connection.execute(insert_into(connection, watches).on_conflict_do_nothing(), row)
            query = _WATCHES.where(watches.c.watch_key == key)
            return StoredWatch(*connection.execute(query).one())

    def remove_watch(self, watch_id: int) -> bool:
        """Remove a watch. Say whether there was a watch with that id."""
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


def _newest(query: Select[Any], after: tuple[date, int] | None, limit: int) -> Select[Any]:
    place = nightly_runs.c.date, nightly_runs.c.id
    if after is not None:
        query = query.where(tuple_(*place) < after)
    return query.order_by(*(column.desc() for column in place)).limit(limit)


def _locked(connection: Connection, schedule: str, day: date) -> Night:
    query = _columns(nightly_runs, Night).where(*_round(schedule, day)).with_for_update()
    return Night(*connection.execute(query).one())


def _round(schedule: str, day: date) -> tuple[Any, Any]:
    return nightly_runs.c.schedule == schedule, nightly_runs.c.date == day


def in_parts(values: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """Split values into parts of `AT_ONCE`."""
    return (values[at : at + AT_ONCE] for at in range(0, len(values), AT_ONCE))

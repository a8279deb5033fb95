"""Find the jobs that answer a submission, or add them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Interval,
    Select,
    and_,
    bindparam,
    func,
    insert,
    or_,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningInsert

from tuner.errors import IdempotencyConflict
from tuner.jobs.job import Job, JobRequest, JobState, Priority, Submitted
from tuner.store.database import Clock, utc_now
from tuner.store.job_rows import append_event, new_job, new_job_row, read_job, update_job
from tuner.store.tables import IS_COALESCIBLE, UtcDateTime, idempotency_keys, job_events, jobs

Asked = tuple[JobRequest, Priority]
Unmet = Callable[[JobRequest], str]  # says why no living worker can do a job; "" if one can


def find_or_add(
    connection: Connection,
    wanted: Sequence[Asked],
    client: str,
    clock: Clock | None,
    fresh: timedelta,
    unmet: Unmet,
) -> tuple[datetime, Sequence[Submitted]]:
    """The time, and for each request the job that answers it: an equal one, or a new one."""
    keys = [request.key for request, _ in wanted]
    # Where a batch has equal requests, the first is added and answers the others.
    first = dict(reversed(list(zip(keys, wanted, strict=True))))
    found: dict[str, Job] = {}
    added: dict[str, Job] = {}
    while missing := {key: one for key, one in first.items() if key not in {**found, **added}}:
        now, equal = _equal_jobs(connection, list(missing), clock, fresh)
        found |= equal
        lacking = {key: one for key, one in missing.items() if key not in equal}
        added |= _add(connection, lacking, client, now, unmet)
        # Another transaction may have added an equal job since: the insert waited for its commit.
    answers = []
    for key, one in zip(keys, wanted, strict=True):
        is_new = key in added and first[key] is one
        job = added.get(key) or found[key]
        if not is_new:
            job = _join(connection, job, client, one[1], now)
            (added if key in added else found)[key] = job
        answers.append(Submitted(job, created=is_new))
    return now, answers


def _equal_jobs(
    connection: Connection, keys: Sequence[str], clock: Clock | None, fresh: timedelta
) -> tuple[datetime, Mapping[str, Job]]:
    """The time, and the jobs that answer requests with these keys, in one statement."""
    if clock is None and connection.dialect.name == "postgresql":
        query, parameters = _EQUAL_BY_THEIR_CLOCK, {"keys": keys, "fresh": fresh}
    else:
        now = utc_now() if clock is None else clock()
        query, parameters = _EQUAL, {"keys": keys, "now": now, "done_since": now - fresh}
    rows = connection.execute(query, parameters).mappings().all()
    found: dict[str, Job] = {}
    for row in sorted((row for row in rows if row["id"]), key=_answers_best):
        found[row["request_key"]] = read_job(row)
    return rows[0]["time"], found


def _select_equal(now: ColumnElement[Any], done_since: ColumnElement[Any]) -> Select[Any]:
    done = and_(jobs.c.state == JobState.DONE.value, jobs.c.finished_at > done_since)
    mine = jobs.c.request_key.in_(bindparam("keys", expanding=True))
    one = select(now.label("time")).subquery()
    joined = one.outerjoin(jobs, and_(mine, or_(IS_COALESCIBLE, done)))
    return select(one.c.time, jobs).select_from(joined)


# Made once: to make them for each submission takes as long as to execute them.
_EQUAL = _select_equal(
    bindparam("now", type_=UtcDateTime), bindparam("done_since", type_=UtcDateTime)
)
_EQUAL_BY_THEIR_CLOCK = _select_equal(
    func.clock_timestamp(type_=UtcDateTime),
    func.clock_timestamp() - bindparam("fresh", type_=Interval),
)


def _answers_best(row: Mapping[Any, Any]) -> tuple[bool, datetime]:
    """Sorts the best answer last: an unfinished job, else the one that was done last."""
    unfinished = row["finished_at"] is None
    return unfinished, row["created_at"] if unfinished else row["finished_at"]


def _add(
    connection: Connection,
    wanted: Mapping[str, Asked],
    client: str,
    now: datetime,
    unmet: Unmet,
) -> dict[str, Job]:
    """Add jobs, and return the ones that no other transaction had added before."""
    if not wanted:
        return {}
    # In the order of their keys: two transactions that add the same jobs cannot wait for each other
    in_order = sorted(wanted.items())
    why = [unmet(request) for _, (request, _) in in_order]
    rows = [
        new_job_row(*asked, client, now) | {"event_count": 2 if reason else 1}
        for (_, asked), reason in zip(in_order, why, strict=True)
    ]
    ids = set(connection.execute(_ADD[connection.dialect.name], rows).scalars())
    new = [
        (request, reason, row)
        for (_, (request, _)), reason, row in zip(in_order, why, rows, strict=True)
        if row["id"] in ids
    ]
    events = [event for _, reason, row in new for event in _first_events(row, reason)]
    if events:
        connection.execute(_ADD_EVENTS, events)
    return {row["request_key"]: new_job(row, request) for request, _, row in new}


_ADD_EVENTS = insert(job_events)


def _addition(
    insertion: postgresql.Insert | sqlite.Insert,
) -> ReturningInsert[tuple[str]]:
    return insertion.on_conflict_do_nothing(
        index_elements=[jobs.c.request_key], index_where=IS_COALESCIBLE
    ).returning(jobs.c.id)


_ADD = {
    "postgresql": _addition(postgresql.insert(jobs)),
    "sqlite": _addition(sqlite.insert(jobs)),
}


def _first_events(row: Mapping[str, Any], unmet: str) -> Iterator[dict[str, Any]]:
    kinds = [("submitted", {"client": row["client"]})]
    if unmet:
        kinds.append(("waiting", {"reason": unmet}))
    for seq, (kind, data) in enumerate(kinds, start=1):
        yield {
            "job_id": row["id"],
            "seq": seq,
            "kind": kind,
            "at": row["created_at"],
            "data": data,
        }


def _join(connection: Connection, job: Job, client: str, priority: Priority, now: datetime) -> Job:
    """Answer a client with a job that is there already."""
    changes: dict[str, Any] = {}
    if not job.state.finished and client not in job.clients:
        changes["clients"] = [*job.clients, client]
    if job.state is JobState.QUEUED and priority < job.priority:
        changes["priority"] = int(priority)
    if not changes:
        return job
    if "clients" in changes:
        append_event(connection, job.id, now, "joined", {"client": client}, **changes)
    else:
        update_job(connection, job.id, **changes)
    query = select(jobs).where(jobs.c.id == job.id)
    return read_job(connection.execute(query).mappings().one())


def earlier_answer(connection: Connection, client: str, key: str, body_hash: str) -> Sequence[Job]:
    """The jobs that the key was answered with before. Raises IdempotencyConflict."""
    mine = idempotency_keys.c.client == client, idempotency_keys.c.key == key
    row = connection.execute(select(idempotency_keys).where(*mine)).mappings().one_or_none()
    if row is None:
        return []
    if row["body_hash"] != body_hash:
        raise IdempotencyConflict(
            f"idempotency key {key!r} was used before with another body: use a new key"
        )
    ids = row["job_ids"] or [row["job_id"]]
    found = connection.execute(select(jobs).where(jobs.c.id.in_(ids))).mappings()
    by_id = {one["id"]: read_job(one) for one in found}
    return [by_id[job_id] for job_id in ids]

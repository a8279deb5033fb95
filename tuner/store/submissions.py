"""Find the jobs that answer a submission, or add them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningInsert

from tuner.errors import IdempotencyConflict
from tuner.jobs.job import Job, JobRequest, JobState, Priority, Submitted, new_job_id
from tuner.store.database import Clock, utc_now
from tuner.store.job_rows import (
    append_event,
    lock_queue,
    new_job,
    new_job_row,
    read_job,
    refuse_full_queue,
    update_job,
)
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
    most: int | None = None,
) -> tuple[datetime, Sequence[Submitted]]:
    """Return the time, and for each request the job that answers it: an equal job, or a new job.

    The answers are locked until the transaction ends, so that no job that is cancelled or deleted
    meanwhile is an answer. Raises QueueFull if the client then has over `most` queued jobs.
    """
    keys = [request.key for request, _ in wanted]
    # If a batch has equal requests, the first is added and answers the others.
    first: dict[str, Asked] = {}
    for key, one in zip(keys, wanted, strict=True):
        first.setdefault(key, one)
    now, found = _done_jobs(connection, list(first), clock, fresh)
    others = {key: one for key, one in first.items() if key not in found}
    if others and most is not None:
        lock_queue(connection, client)
    added, joined = _add_or_lock(connection, others, client, now, unmet)
    if added and most is not None:
        refuse_full_queue(connection, client, most, len(added))
    found |= joined
    answers = []
    for key, one in zip(keys, wanted, strict=True):
        is_new = key in added and first[key] is one
        job = added.get(key) or found[key]
        if not is_new:
            job = _join(connection, job, client, one[1], now)
            (added if key in added else found)[key] = job
        answers.append(Submitted(job, created=is_new))
    return now, answers


def _done_jobs(
    connection: Connection, keys: Sequence[str], clock: Clock | None, fresh: timedelta
) -> tuple[datetime, dict[str, Job]]:
    """Return the time, and by key the jobs done lately that answer, locked against deletion.

    A request with an unfinished equal job is left out: that job answers.
    """
    if clock is None and connection.dialect.name == "postgresql":
        query, parameters = _EQUAL_BY_THEIR_CLOCK, {"keys": keys, "fresh": fresh}
    else:
        now = utc_now() if clock is None else clock()
        query, parameters = _EQUAL, {"keys": keys, "now": now, "done_since": now - fresh}
    rows = connection.execute(query, parameters).mappings().all()
    by_key = {
        row["request_key"]: row
        for row in sorted((row for row in rows if row["id"]), key=_answers_best)
    }
    done = {key: row for key, row in by_key.items() if row["finished_at"] is not None}
    there = _still_there(connection, [row["id"] for row in done.values()])
    return rows[0]["time"], {key: read_job(row) for key, row in done.items() if row["id"] in there}


def _still_there(connection: Connection, job_ids: Collection[str]) -> set[str]:
    """Lock finished jobs against deletion, and return the ids of the jobs that are not deleted."""
    if not job_ids:
        return set()
    query = select(jobs.c.id).where(jobs.c.id.in_(job_ids)).order_by(jobs.c.id)
    return set(connection.execute(query.with_for_update(read=True, key_share=True)).scalars())


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
    """Sort the best answer last: an unfinished job, else the job that was done last."""
    unfinished = row["finished_at"] is None
    return unfinished, row["created_at"] if unfinished else row["finished_at"]


def _add_or_lock(
    connection: Connection, wanted: Mapping[str, Asked], client: str, now: datetime, unmet: Unmet
) -> tuple[dict[str, Job], dict[str, Job]]:
    """Add the jobs that have no unfinished equal; lock the equals of the others. Return both.

    A single statement goes through all jobs in the order of their keys. So two submissions with the
    same jobs wait for each other at the first of these, and never crosswise. A job that is done
    just before the statement is added anew, and its trials are found stored.
    """
    if not wanted:
        return {}, {}
    in_order = sorted(wanted.items())
    why = [unmet(request) for _, (request, _) in in_order]
    ids_in_turn = dict(zip(wanted, sorted(new_job_id() for _ in wanted), strict=True))
    rows = [
        new_job_row(*asked, client, now)
        | {"id": ids_in_turn[key], "event_count": 2 if reason else 1}
        for (key, asked), reason in zip(in_order, why, strict=True)
    ]
    ids = set(connection.execute(_ADD_OR_LOCK[connection.dialect.name], rows).scalars())
    new = [
        (request, reason, row)
        for (_, (request, _)), reason, row in zip(in_order, why, rows, strict=True)
        if row["id"] in ids
    ]
    events = [event for _, reason, row in new for event in _first_events(row, reason)]
    if events:
        connection.execute(_ADD_EVENTS, events)
    added = {row["request_key"]: new_job(row, request) for request, _, row in new}
    return added, _unfinished(connection, [key for key in wanted if key not in added])


def _unfinished(connection: Connection, keys: Sequence[str]) -> dict[str, Job]:
    if not keys:
        return {}
    query = select(jobs).where(jobs.c.request_key.in_(keys), IS_COALESCIBLE)
    rows = connection.execute(query).mappings()
    return {row["request_key"]: read_job(row) for row in rows}


_ADD_EVENTS = insert(job_events)


def _addition(insertion: postgresql.Insert | sqlite.Insert) -> ReturningInsert[tuple[str]]:
    # DO NOTHING would lock no job that is there. With a condition that is never true, DO UPDATE
    # locks the job, changes nothing and does not return its id.
    return insertion.on_conflict_do_update(
        index_elements=[jobs.c.request_key],
        index_where=IS_COALESCIBLE,
        set_={"event_count": jobs.c.event_count},
        where=text("1 = 0"),
    ).returning(jobs.c.id)


_ADD_OR_LOCK = {
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
    """Answer a client with a job that is there already; the transaction has locked its row."""
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
    """Return the jobs that the key was answered with before. Raises IdempotencyConflict."""
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
    if len(by_id) < len(set(ids)):  # a job was deleted since the first statement, with the key
        return []
    return [by_id[job_id] for job_id in ids]

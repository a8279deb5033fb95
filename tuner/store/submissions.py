"""Adding jobs to the queue: several at once, in few statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Interval, and_, func, insert, literal, or_, select

from tuner.jobs.job import Job, JobRequest, JobState, Priority, Submitted
from tuner.store.database import Clock, insert_into, utc_now
from tuner.store.job_rows import append_event, new_job, new_job_row, read_job, update_job
from tuner.store.job_tables import IS_COALESCIBLE, job_events, jobs
from tuner.store.tables import UtcDateTime


@dataclass(frozen=True)
class Submission:
    """One request of a client."""

    request: JobRequest
    priority: Priority = Priority.NORMAL
    unmet: str = ""  # why no living worker can do it


def find_or_add(
    connection: Connection,
    wanted: Sequence[Submission],
    client: str,
    clock: Clock | None,
    fresh: timedelta,
    trace: str,
) -> tuple[datetime, Sequence[Submitted]]:
    """The time, and for each request the job that answers it: an equal one, or a new one."""
    keys = [one.request.key for one in wanted]
    # Of equal requests in one batch, the first is added and answers the others.
    first = dict(reversed(list(zip(keys, wanted, strict=True))))
    found: dict[str, Job] = {}
    added: dict[str, Job] = {}
    while missing := {key: one for key, one in first.items() if key not in {**found, **added}}:
        now, equal = _equal_jobs(connection, list(missing), clock, fresh)
        found |= equal
        lacking = {key: one for key, one in missing.items() if key not in equal}
        added |= _add(connection, lacking, client, now, trace)
        # Another transaction may have added an equal job since: the insert waited for its commit.
    answers = []
    for key, one in zip(keys, wanted, strict=True):
        is_new = key in added and first[key] is one
        job = added.get(key) or found[key]
        if not is_new:
            job = _join(connection, job, client, one.priority, now)
            (added if key in added else found)[key] = job
        answers.append(Submitted(job, created=is_new))
    return now, answers


def _equal_jobs(
    connection: Connection, keys: Sequence[str], clock: Clock | None, fresh: timedelta
) -> tuple[datetime, Mapping[str, Job]]:
    """The time, and the jobs that answer requests with these keys, in one statement."""
    now, done_since = _now(connection, clock, fresh)
    done = and_(jobs.c.state == JobState.DONE.value, jobs.c.finished_at > done_since)
    equal = and_(jobs.c.request_key.in_(keys), or_(IS_COALESCIBLE, done))
    one = select(now.label("time")).subquery()
    query = select(one.c.time, jobs).select_from(one.outerjoin(jobs, equal))
    rows = connection.execute(query).mappings().all()
    found: dict[str, Job] = {}
    for row in sorted((row for row in rows if row["id"]), key=_answers_best):
        found[row["request_key"]] = read_job(row)
    return rows[0]["time"], found


def _answers_best(row: Mapping[Any, Any]) -> tuple[bool, datetime]:
    """Sorts the best answer last: an unfinished job, else the one that was done last."""
    unfinished = row["finished_at"] is None
    return unfinished, row["created_at"] if unfinished else row["finished_at"]


def _now(
    connection: Connection, clock: Clock | None, fresh: timedelta
) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    """The time, and the time `fresh` ago; PostgreSQL tells its own while it answers."""
    if clock is None and connection.dialect.name == "postgresql":
        now = func.clock_timestamp(type_=UtcDateTime)
        return now, func.clock_timestamp() - literal(fresh, Interval)
    here = utc_now() if clock is None else clock()
    return literal(here, UtcDateTime), literal(here - fresh, UtcDateTime)


def _add(
    connection: Connection,
    wanted: Mapping[str, Submission],
    client: str,
    now: datetime,
    trace: str,
) -> dict[str, Job]:
    """Add jobs, and return those that no other transaction added before."""
    if not wanted:
        return {}
    # In the order of their keys: two transactions that add the same jobs cannot wait for each other
    rows = [
        new_job_row(wanted[key].request, wanted[key].priority, client, now, trace)
        for key in sorted(wanted)
    ]
    addition = (
        insert_into(connection, jobs)
        .on_conflict_do_nothing(index_elements=[jobs.c.request_key], index_where=IS_COALESCIBLE)
        .returning(jobs.c.id)
    )
    ids = set(connection.execute(addition, rows).scalars())
    new = [row for row in rows if row["id"] in ids]
    events = [
        {"job_id": row["id"], "seq": 1, "kind": "submitted", "at": now, "data": {"client": client}}
        for row in new
    ]
    if events:
        connection.execute(insert(job_events), events)
    for row in new:
        if reason := wanted[row["request_key"]].unmet:
            append_event(connection, row["id"], now, "waiting", {"reason": reason})
    return {row["request_key"]: new_job(row, wanted[row["request_key"]].request) for row in new}


def _join(connection: Connection, job: Job, client: str, priority: Priority, now: datetime) -> Job:
    """Answer a client with a job that is there already."""
    changes: dict[str, Any] = {}
    if not job.state.finished and client not in job.waits_for:
        changes["clients"] = [*job.waits_for, client]
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

"""Job rows to dataclasses and back, and the two steps of every change of a job."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, insert, select, update

from tuner.errors import BadInput, UnknownJob
from tuner.jobs.job import Job, JobEvent, JobRequest, JobState, Priority, new_job_id, read_request
from tuner.store.job_tables import job_events, jobs


def new_job_row(
    request: JobRequest, priority: Priority, client: str, now: datetime
) -> dict[str, Any]:
    return {
        "id": new_job_id(),
        "request": request.as_json(),
        "request_key": request.key,
        "device": request.device,
        "model": request.model,
        "needs_gpu": request.needs_gpu,
        "priority": int(priority),
        "state": JobState.QUEUED.value,
        "client": client,
        "attempts": 0,
        "owner": "",
        "fence": 0,
        "cancel_requested": False,
        "event_count": 0,
        "error": "",
        "available_at": now,
        "announced_at": now,
        "created_at": now,
        "updated_at": now,
    }


def read_job(row: RowMapping) -> Job:
    return Job(
        id=row["id"],
        request=read_request(row["request"]),
        priority=Priority(row["priority"]),
        state=JobState(row["state"]),
        client=row["client"],
        attempts=row["attempts"],
        owner=row["owner"],
        lease_expires_at=row["lease_expires_at"],
        cancel_requested=row["cancel_requested"],
        run_id=row["run_id"],
        error=row["error"],
        available_at=row["available_at"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        finished_at=row["finished_at"],
    )


# Reading a request that a newer version stored may raise these.
UNREADABLE = (BadInput, LookupError, TypeError, ValueError)


def read_if_possible(row: RowMapping) -> Job | None:
    """The job; None where this version cannot read its request, which must not stop other jobs."""
    try:
        return read_job(row)
    except UNREADABLE:
        return None


def read_event(row: RowMapping) -> JobEvent:
    return JobEvent(row["job_id"], row["seq"], row["kind"], row["at"], row["data"])


def get_job(connection: Connection, job_id: str, *, lock: bool = False) -> Job:
    """The job. With `lock`, its row is locked until the transaction ends. Raises UnknownJob."""
    query = select(jobs).where(jobs.c.id == job_id)
    if lock:  # SQLAlchemy leaves the clause out on SQLite, which has one writer anyway
        query = query.with_for_update()
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise UnknownJob(f"there is no job {job_id!r}")
    return read_job(row)


def append_event(
    connection: Connection, job_id: str, now: datetime, kind: str, data: Mapping[str, Any]
) -> None:
    """Number an event and add it. This locks the job's row until the transaction ends."""
    count = jobs.c.event_count + 1
    numbered = (
        update(jobs)
        .where(jobs.c.id == job_id)
        .values(event_count=count, updated_at=now)
        .returning(jobs.c.event_count)
    )
    seq = connection.execute(numbered).scalar_one()
    row = {"job_id": job_id, "seq": seq, "kind": kind, "at": now, "data": dict(data)}
    connection.execute(insert(job_events), row)


def move(
    connection: Connection, job_id: str, state: JobState, now: datetime, **values: object
) -> None:
    """Give a job its next state, without an event. The transaction must have locked its row."""
    changes: dict[str, Any] = {"state": state.value, "updated_at": now, **values}
    if state.finished:
        changes.update(finished_at=now, lease_expires_at=None)
    connection.execute(update(jobs).where(jobs.c.id == job_id).values(**changes))

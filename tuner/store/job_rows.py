"""Job rows to dataclasses and back, and the two steps of every change of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, insert, select, update

from tuner.errors import BadInput, UnknownJob
from tuner.jobs.job import Cost, Job, JobRequest, JobState, Priority, new_job_id, read_request
from tuner.store.job_tables import job_events, jobs


def new_job_row(
    request: JobRequest, priority: Priority, client: str, now: datetime, trace: str = ""
) -> dict[str, Any]:
    """The row of a queued job without events."""
    return {
        "id": new_job_id(),
        "request": request.as_json(),
        "request_key": request.key,
        "device": request.device,
        "engine": request.engine,
        "model": request.model,
        "needs_gpu": request.needs_gpu,
        "priority": int(priority),
        "state": JobState.QUEUED.value,
        "client": client,
        "clients": [client],
        "attempts": 0,
        "trial_count": 0,
        "owner": "",
        "fence": 0,
        "cancel_requested": False,
        "event_count": 0,
        "error": "",
        "trace": trace,
        "available_at": now,
        "announced_at": now,
        "created_at": now,
        "updated_at": now,
    }


COST = (jobs.c.gpu_s, jobs.c.gpu_idle_s, jobs.c.cpu_s)  # in the order of a Cost's fields
_LATER = (
    *("lease_expires_at", "run_id", "started_at", "finished_at"),
    *(column.name for column in COST),
)


def cost_columns(cost: Cost) -> dict[str, float]:
    """The columns of a job's row that say what it cost."""
    return asdict(cost)


def read_cost(row: Mapping[Any, Any]) -> Cost | None:
    """What the job of a row cost, where that is known."""
    return None if row["cpu_s"] is None else Cost(*(row[column.name] for column in COST))


def new_job(row: Mapping[str, Any], request: JobRequest) -> Job:
    """The job of a row from `new_job_row`, as reading it back would give."""
    return _job({**dict.fromkeys(_LATER), **row}, request)


def read_job(row: Mapping[Any, Any]) -> Job:
    return _job(row, read_request(row["request"]))


def _job(row: Mapping[Any, Any], request: JobRequest) -> Job:
    values = {field.name: row[field.name] for field in fields(Job) if field.name != "cost"}
    values["cost"] = read_cost(row)
    values["request"], values["clients"] = request, tuple(row["clients"])
    values["priority"], values["state"] = Priority(row["priority"]), JobState(row["state"])
    return Job(**values)


# Reading a request that a newer version stored may raise these.
UNREADABLE = (BadInput, LookupError, TypeError, ValueError)


def read_if_possible(row: RowMapping) -> Job | None:
    """The job; None where this version cannot read its request, which must not stop other jobs."""
    try:
        return read_job(row)
    except UNREADABLE:
        return None


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
    connection: Connection,
    job_id: str,
    now: datetime,
    kind: str,
    data: Mapping[str, Any],
    **changes: object,
) -> None:
    """Number an event and add it. This locks the job's row until the transaction ends.

    `changes` are values for other columns of the job.
    """
    count = jobs.c.event_count + 1
    numbered = (
        update(jobs)
        .where(jobs.c.id == job_id)
        .values(event_count=count, updated_at=now, **changes)
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
    update_job(connection, job_id, **changes)


def update_job(connection: Connection, job_id: str, **values: object) -> None:
    connection.execute(update(jobs).where(jobs.c.id == job_id).values(**values))

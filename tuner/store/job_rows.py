"""Convert job rows to dataclasses and back, and take the steps of each change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, func, insert, select, update

from tuner.errors import QueueFull, StaleLease, UnknownJob
from tuner.jobs.attempts import HeldJob
from tuner.jobs.job import (
    HELD,
    LEASE,
    MAX_ATTEMPTS,
    Cost,
    Job,
    JobRequest,
    JobState,
    Lease,
    Priority,
    UnreadableRequest,
    read_if_possible,
)
from tuner.problems.results import RunState
from tuner.store.database import transaction_lock
from tuner.store.rows import storable
from tuner.store.tables import IS_QUEUED, job_events, jobs, runs


def new_job_row(
    request: JobRequest, priority: Priority, client: str, now: datetime
) -> dict[str, Any]:
    """Return the row of a queued job without an id and events."""
    return {
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
    """Return the columns of a job's row that hold its cost."""
    return asdict(cost)


def new_job(row: Mapping[str, Any], request: JobRequest) -> Job:
    """Return the job of a row from `new_job_row`, as reading it back would."""
    return _job({**dict.fromkeys(_LATER), **row}, request)


def read_job(row: Mapping[Any, Any]) -> Job:
    return _job(row, read_if_possible(row["request"]))


def _job(row: Mapping[Any, Any], request: JobRequest | UnreadableRequest) -> Job:
    values = {field.name: row[field.name] for field in fields(Job) if field.name != "cost"}
    values["cost"] = None if row["cpu_s"] is None else Cost(*(row[column.name] for column in COST))
    values["request"], values["clients"] = request, tuple(row["clients"])
    values["priority"], values["state"] = Priority(row["priority"]), JobState(row["state"])
    return Job(**values)


def get_job(connection: Connection, job_id: str, *, lock: bool = False) -> Job:
    """Return the job. With `lock`, its row is locked until the transaction ends. Raises
    UnknownJob.
    """
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
    """Give a job its next state, without an event. The transaction must have locked its row.

    The job's run is interrupted, unless the job goes on with it or its child said how it ended.
    """
    changes: dict[str, Any] = {"state": state.value, "updated_at": now, **values}
    if state.finished:
        changes.update(finished_at=now, lease_expires_at=None)
    update_job(connection, job_id, **changes)
    if state not in HELD:
        mine = select(jobs.c.run_id).where(jobs.c.id == job_id).scalar_subquery()
        going_on = runs.c.id == mine, runs.c.state == RunState.RUNNING.value
        stopped = update(runs).where(*going_on)
        connection.execute(stopped.values(state=RunState.INTERRUPTED.value, updated_at=now))


def update_job(connection: Connection, job_id: str, **values: object) -> None:
    connection.execute(update(jobs).where(jobs.c.id == job_id).values(**values))


def lock_queue(connection: Connection, client: str) -> None:
    """Keep other transactions from adding to the client's queued jobs, which are then counted.

    It is taken before any lock that another submission or retry may wait for.
    """
    transaction_lock(connection, f"queue of {client}")


def refuse_full_queue(connection: Connection, client: str, most: int, added: int) -> None:
    """Raise QueueFull if the client has over `most` queued jobs, `added` of them just now."""
    mine = IS_QUEUED, jobs.c.needs_gpu.in_([False, True]), jobs.c.client == client
    # The condition of all priorities makes SQLite walk along `ix_jobs_turn`: 1 ms for 9,000 jobs.
    some = select(jobs.c.id).where(*mine, jobs.c.priority >= 0).limit(most + added).subquery()
    count = int(connection.execute(select(func.count()).select_from(some)).scalar_one())
    if count > most:
        raise QueueFull(
            f"{client} has {count - added} queued jobs, and may have {most}: wait or cancel some"
        )


IS_HELD = jobs.c.state.in_([state.value for state in HELD])
RETRY_DELAY = timedelta(seconds=2)  # after the first attempt; doubled after each further attempt
REFUSALS = 10  # of workers that could not begin to tune a job; further refusals count as attempts


def is_leased(lease: Lease) -> ColumnElement[bool]:
    """Return the condition that a job's last lease is this lease; IS_HELD says whether a worker has
    it.
    """
    mine = jobs.c.fence == lease.fence, jobs.c.owner == lease.owner
    return and_(jobs.c.id == lease.job_id, *mine)


def leased_row(connection: Connection, lease: Lease, *, lock: bool = True) -> RowMapping:
    """Return the row of the lease's job, with `lock` locked until the transaction ends.

    Raises StaleLease once the lease is lost. A restored backup gives out fencing numbers again, so
    the owner must be the lease's too.
    """
    query = select(jobs).where(is_leased(lease), IS_HELD)
    row = connection.execute(query.with_for_update() if lock else query).mappings().one_or_none()
    if row is None:
        raise StaleLease(f"job {lease.job_id} was given to another worker, or ended")
    return row


UNREADABLE_DELAY = timedelta(minutes=1)  # for an upgrade to reach a worker that can read the job


def leave_unreadable(
    connection: Connection, row: RowMapping, owner: str, now: datetime, why: str
) -> None:
    """Leave a queued job, which the transaction has locked, to workers of another release.

    That counts no attempt. An event says it once, not each time that a worker looks.
    """
    reason = storable(f"a worker cannot read the request: {why}")
    values = {"available_at": now + UNREADABLE_DELAY, "error": reason}
    if row["error"] == reason:
        update_job(connection, row["id"], **values)
    else:
        said = {"reason": reason, "owner": owner}
        append_event(connection, row["id"], now, "waiting", said, **values)


def claimed(row: RowMapping, owner: str, now: datetime) -> dict[str, Any]:
    """Return the changes that a claim makes to a job's row."""
    return {
        "owner": owner,
        "fence": row["fence"] + 1,
        "attempts": row["attempts"] + 1,
        "trial_count": 0,
        "lease_expires_at": now + LEASE,
        "started_at": row["started_at"] or now,
    }


def held_of(row: RowMapping) -> HeldJob:
    return HeldJob(
        fence=row["fence"],
        owner=row["owner"],
        began=row["state"] == JobState.RUNNING.value,
        trial_count=row["trial_count"],
        renewal=row["lease_expires_at"],
        cancel_requested=row["cancel_requested"],
    )


def refuse(
    connection: Connection,
    row: RowMapping,
    now: datetime,
    reason: str,
    delay: timedelta = RETRY_DELAY,
) -> None:
    """Give a job back that was not begun; refusals after the first `REFUSALS` count as attempts."""
    mine, kind = job_events.c.job_id == row["id"], job_events.c.kind
    retried = select(func.max(job_events.c.seq)).where(mine, kind == "retried").scalar_subquery()
    since = job_events.c.seq > func.coalesce(retried, 0)
    refusals = select(func.count()).select_from(job_events).where(mine, kind == "refused", since)
    count = connection.execute(refusals).scalar_one()
    capped = count >= REFUSALS
    if not capped:
        update_job(connection, row["id"], attempts=row["attempts"] - 1)
    give_back(connection, row, now, reason, delay, kind="refused", capped=capped)


def give_back(
    connection: Connection,
    row: Mapping[Any, Any],
    now: datetime,
    reason: str,
    delay: timedelta,
    *,
    kind: str = "requeued",
    capped: bool = True,
) -> JobState:
    """End an attempt without a result. The transaction must have locked the row.

    `kind` is the event's, if the job is queued again.
    """
    reason = storable(reason)
    values: dict[str, Any] = {"error": reason}
    if row["cancel_requested"]:
        state = JobState.CANCELLED
    elif capped and row["attempts"] >= MAX_ATTEMPTS:
        state = JobState.DEAD
    else:
        state = JobState.QUEUED
        values.update(lease_expires_at=None, available_at=now + delay)
    move(connection, row["id"], state, now, **values)
    data = {"reason": reason, "owner": row["owner"]}
    append_event(
        connection, row["id"], now, kind if state is JobState.QUEUED else state.value, data
    )
    return state

"""A leased job's row: finding it under its lease, and the ways in which an attempt ends."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, RowMapping, func, select

from tuner.errors import StaleLease
from tuner.jobs.job import HELD, LEASE, MAX_ATTEMPTS, JobState, Lease
from tuner.jobs.limits import Held
from tuner.store.job_rows import append_event, move, update_job
from tuner.store.job_tables import job_events, jobs
from tuner.store.rows import storable

IS_HELD = jobs.c.state.in_([state.value for state in HELD])
RETRY_DELAY = timedelta(seconds=2)  # after the first attempt; doubled after each further one
REFUSALS = 10  # of workers that could not begin to tune a job; further ones count as attempts


def leased_row(connection: Connection, lease: Lease, *, lock: bool = True) -> RowMapping:
    """The row of the lease's job, with `lock` locked until the transaction ends.

    Raises StaleLease once the lease is lost.
    """
    query = select(jobs).where(jobs.c.id == lease.job_id, jobs.c.fence == lease.fence, IS_HELD)
    row = connection.execute(query.with_for_update() if lock else query).mappings().one_or_none()
    if row is None:
        raise StaleLease(f"job {lease.job_id} was given to another worker, or ended")
    return row


def claimed(
    row: RowMapping, owner: str, now: datetime, preferred: Mapping[str, str]
) -> dict[str, Any]:
    """What a claim changes in a job's row."""
    request = dict(row["request"])
    request["engine"] = engine = preferred.get(row["engine"], row["engine"])
    return {
        "owner": owner,
        "fence": row["fence"] + 1,
        "attempts": row["attempts"] + 1,
        "trial_count": 0,
        "lease_expires_at": now + LEASE,
        "started_at": row["started_at"] or now,
        "engine": engine,
        "request": request,
    }


def held_of(row: RowMapping) -> Held:
    return Held(
        fence=row["fence"],
        owner=row["owner"],
        began=row["state"] == JobState.RUNNING.value,
        trial_count=row["trial_count"],
        renewal=row["lease_expires_at"],
        cancel_requested=row["cancel_requested"],
    )


def refuse(connection: Connection, row: RowMapping, now: datetime, reason: str) -> None:
    mine, kind = job_events.c.job_id == row["id"], job_events.c.kind
    retried = select(func.max(job_events.c.seq)).where(mine, kind == "retried").scalar_subquery()
    since = job_events.c.seq > func.coalesce(retried, 0)
    refusals = select(func.count()).select_from(job_events).where(mine, kind == "refused", since)
    count = connection.execute(refusals).scalar_one()
    capped = count >= REFUSALS
    if not capped:
        update_job(connection, row["id"], attempts=row["attempts"] - 1)
    give_back(connection, row, now, reason, RETRY_DELAY, kind="refused", capped=capped)


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

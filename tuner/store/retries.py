"""Queueing a job again that ended without a result."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.exc import IntegrityError

from tuner.errors import EqualJobUnfinished, NotRetriable
from tuner.jobs.job import Job, JobState
from tuner.store.job_rows import append_event, get_job, move
from tuner.store.job_tables import IS_COALESCIBLE, jobs

_RETRIABLE = (JobState.DEAD, JobState.FAILED, JobState.CANCELLED)


def retry_job(connection: Connection, job_id: str, client: str, now: datetime) -> Job:
    """Queue the job again, with all its attempts. One that is unfinished stays as it is.

    Raises UnknownJob, NotRetriable for a job that is done or being cancelled, and
    EqualJobUnfinished where another job does the same work.
    """
    job = get_job(connection, job_id, lock=True)
    if job.state not in _RETRIABLE:
        if job.state is JobState.DONE:
            raise NotRetriable(f"job {job_id} is done: submit it anew to do its work again")
        if job.cancel_requested:
            raise NotRetriable(f"job {job_id} is being cancelled: retry it when it has ended")
        return job  # it was retried before
    values: dict[str, Any] = {
        **{"attempts": 0, "trial_count": 0, "cancel_requested": False},
        **{"available_at": now, "announced_at": now, "started_at": None, "finished_at": None},
        "clients": _clients(job, client),
    }
    try:
        with connection.begin_nested():
            move(connection, job_id, JobState.QUEUED, now, **values)
    except IntegrityError:
        raise EqualJobUnfinished(_equal(connection, job_id)) from None
    append_event(connection, job_id, now, "retried", {"client": client})
    return get_job(connection, job_id)


def _clients(job: Job, client: str) -> list[str]:
    """Who waits for the job now. Nobody waits any more for one that was cancelled."""
    waiting = [] if job.state is JobState.CANCELLED else list(job.clients)
    return waiting if client in waiting else [*waiting, client]


def _equal(connection: Connection, job_id: str) -> str:
    key = select(jobs.c.request_key).where(jobs.c.id == job_id).scalar_subquery()
    equal = select(jobs.c.id, jobs.c.state).where(jobs.c.request_key == key, IS_COALESCIBLE)
    row = connection.execute(equal).one_or_none()
    if row is None:  # it has just ended
        return "an equal job was unfinished: try again"
    return f"job {row.id} asks for the same work and is {row.state}: follow that one"

"""Deleting a job that nobody wants to see any more."""

from __future__ import annotations

from sqlalchemy import Connection, Text, cast, delete

from tuner.errors import JobUnfinished
from tuner.jobs.job import Job
from tuner.store.job_rows import get_job
from tuner.store.job_tables import idempotency_keys, job_events, jobs


def delete_job(connection: Connection, job_id: str) -> Job:
    """Delete the job, its events, and the idempotency keys that were answered with it.

    Its run stays, with all that was tried and published. Returns the job as it was. Raises
    UnknownJob, and JobUnfinished for a job that has not ended.
    """
    job = get_job(connection, job_id, lock=True)
    if not job.state.finished:
        raise JobUnfinished(
            f"job {job_id} is {job.state.value}: cancel it first, and delete it when it has ended"
        )
    of_batch = cast(idempotency_keys.c.job_ids, Text).contains(job_id)
    answered = (idempotency_keys.c.job_id == job_id) | of_batch
    connection.execute(delete(idempotency_keys).where(answered))
    connection.execute(delete(job_events).where(job_events.c.job_id == job_id))
    connection.execute(delete(jobs).where(jobs.c.id == job_id))
    return job

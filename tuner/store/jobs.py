"""The queue for clients: posting, showing and cancelling jobs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine, delete, func, insert, select, tuple_

from tuner.errors import IdempotencyConflict, IdempotencyKeyInUse
from tuner.jobs.job import FRESH, Job, JobEvent, JobRequest, JobState, Priority, Submitted
from tuner.store.database import Clock, Database, insert_into, time_of
from tuner.store.job_rows import append_event, get_job, move, new_job_row, read_job, update_job
from tuner.store.job_tables import IS_COALESCIBLE, idempotency_keys, job_events, jobs
from tuner.store.retries import retry_job


class JobStore(Database):
    """Posts, shows and cancels jobs. Workers use `tuner.store.Leases`.

    Every method is one transaction, and raises UnusableStore when the database fails.
    """

    def __init__(self, engine: Engine, clock: Clock | None = None) -> None:
        super().__init__(engine)
        self._clock = clock

    def submit(
        self,
        request: JobRequest,
        *,
        priority: Priority = Priority.NORMAL,
        client: str = "local",
        idempotency_key: str | None = None,
        body_hash: str = "",
        fresh: timedelta = FRESH,
    ) -> Submitted:
        """Queue a job, or find the one that answers the request. It is committed on return.

        A job answers the request if this client posted it with the same idempotency key, or if it
        has the same request and is unfinished, or was done within `fresh`. Raises
        IdempotencyConflict where the idempotency key was used before with another `body_hash`, and
        IdempotencyKeyInUse while any process works on another submission with that key.
        """
        with self._submission(client, idempotency_key) as connection:
            now = time_of(connection, self._clock)
            if idempotency_key is None:
                return Submitted(*_find_or_add(connection, request, priority, client, now, fresh))
            if job := _earlier_answer(connection, client, idempotency_key, body_hash):
                return Submitted(job, created=False, replayed=True)
            job, created = _find_or_add(connection, request, priority, client, now, fresh)
            row = {
                "client": client,
                "key": idempotency_key,
                "body_hash": body_hash,
                "job_id": job.id,
                "created_at": now,
            }
            connection.execute(insert(idempotency_keys), row)
            return Submitted(job, created)

    def get(self, job_id: str) -> Job:
        """The job. Raises UnknownJob."""
        with self._read() as connection:
            return get_job(connection, job_id)

    def list(
        self,
        *,
        device: str | None = None,
        model: str | None = None,
        state: JobState | None = None,
        after: tuple[datetime, str] | None = None,
        limit: int = 50,
    ) -> Sequence[Job]:
        """A page of jobs, the newest first; `after` is the last page's last (created_at, id)."""
        wanted = {jobs.c.device: device, jobs.c.model: model, jobs.c.state: state and state.value}
        query = (
            select(jobs)
            .where(*(column == value for column, value in wanted.items() if value is not None))
            .order_by(jobs.c.created_at.desc(), jobs.c.id.desc())
            .limit(limit)
        )
        if after is not None:
            query = query.where(tuple_(jobs.c.created_at, jobs.c.id) < after)
        with self._read() as connection:
            return [read_job(row) for row in connection.execute(query).mappings()]

    def cancel(self, job_id: str) -> Job:
        """End a job that no worker has, or ask its worker to end it. A finished job stays as it is.

        Raises UnknownJob.
        """
        with self._write() as connection:
            job, now = get_job(connection, job_id, lock=True), time_of(connection, self._clock)
            abandoned = job.lease_expires_at is not None and job.lease_expires_at < now
            if job.state is JobState.QUEUED or abandoned:
                move(connection, job_id, JobState.CANCELLED, now)
                append_event(connection, job_id, now, JobState.CANCELLED.value, {})
            elif not job.state.finished and not job.cancel_requested:
                update_job(connection, job_id, cancel_requested=True)
                append_event(connection, job_id, now, "cancel_requested", {})
            return get_job(connection, job_id)

    def events(self, job_id: str, after: int = 0, limit: int = 1000) -> Sequence[JobEvent]:
        """A job's events with numbers above `after`, in order; none for an unknown job."""
        query = (
            select(job_events)
            .where(job_events.c.job_id == job_id, job_events.c.seq > after)
            .order_by(job_events.c.seq)
            .limit(limit)
        )
        with self._read() as connection:
            return [JobEvent(**row) for row in connection.execute(query).mappings()]

    def counts(self) -> dict[JobState, int]:
        """The number of jobs in each state. States without jobs are left out."""
        query = select(jobs.c.state, func.count()).group_by(jobs.c.state)
        with self._read() as connection:
            return {JobState(state): count for state, count in connection.execute(query)}

    def forget_idempotency_keys(self, older_than: timedelta = timedelta(days=7)) -> int:
        """Delete old keys and return their number. Their jobs stay."""
        with self._write() as connection:
            old = idempotency_keys.c.created_at < time_of(connection, self._clock) - older_than
            return connection.execute(delete(idempotency_keys).where(old)).rowcount

    def _submission(
        self, client: str, idempotency_key: str | None
    ) -> AbstractContextManager[Connection]:
        if idempotency_key is None:
            return self._write()
        return self._write_locked(f"submit {client} {idempotency_key}", IdempotencyKeyInUse())

    def retry(self, job_id: str, client: str = "local") -> Job:
        """Queue a dead, failed or cancelled job again. Raises what `retry_job` raises."""
        with self._write() as connection:
            return retry_job(connection, job_id, client, time_of(connection, self._clock))


def _earlier_answer(connection: Connection, client: str, key: str, body_hash: str) -> Job | None:
    """The job that the key was answered with before. Raises IdempotencyConflict."""
    query = (
        select(jobs, idempotency_keys.c.body_hash)
        .join(idempotency_keys, idempotency_keys.c.job_id == jobs.c.id)
        .where(idempotency_keys.c.client == client, idempotency_keys.c.key == key)
    )
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        return None
    if row["body_hash"] != body_hash:
        raise IdempotencyConflict(
            f"idempotency key {key!r} was used before with another body: use a new key"
        )
    return read_job(row)


def _find_or_add(
    connection: Connection,
    request: JobRequest,
    priority: Priority,
    client: str,
    now: datetime,
    fresh: timedelta,
) -> tuple[Job, bool]:
    row = new_job_row(request, priority, client, now)
    addition = insert_into(connection, jobs).on_conflict_do_nothing(
        index_elements=[jobs.c.request_key], index_where=IS_COALESCIBLE
    )
    while True:
        if found := _equal_job(connection, request.key, now - fresh):
            return _raise_priority(connection, found, priority), False
        if connection.execute(addition, row).rowcount:
            append_event(connection, row["id"], now, "submitted", {"client": client})
            return get_job(connection, row["id"]), True
        # Another transaction added an equal job first. The insert waited for its commit.


def _equal_job(connection: Connection, request_key: str, done_since: datetime) -> Job | None:
    equal = select(jobs).where(jobs.c.request_key == request_key)
    unfinished = equal.where(IS_COALESCIBLE)
    done = (
        equal.where(jobs.c.state == JobState.DONE.value, jobs.c.finished_at > done_since)
        .order_by(jobs.c.finished_at.desc())
        .limit(1)
    )
    for query in (unfinished, done):
        if row := connection.execute(query).mappings().one_or_none():
            return read_job(row)
    return None


def _raise_priority(connection: Connection, job: Job, priority: Priority) -> Job:
    if job.state is JobState.QUEUED and priority < job.priority:
        update_job(connection, job.id, priority=int(priority))
        return get_job(connection, job.id)
    return job

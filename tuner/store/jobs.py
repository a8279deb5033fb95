"""The queue for clients: posting, showing and cancelling jobs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine, delete, func, insert, select

from tuner.errors import IdempotencyConflict, IdempotencyKeyInUse
from tuner.jobs.job import (
    FRESH,
    UNFINISHED,
    Job,
    JobEvent,
    JobRequest,
    JobState,
    Priority,
    Submitted,
)
from tuner.jobs.listing import ALL_JOBS, JobQuery
from tuner.store.database import Clock, Database, time_of
from tuner.store.deletions import delete_job
from tuner.store.job_pages import select_page
from tuner.store.job_rows import append_event, get_job, move, read_job, update_job
from tuner.store.job_tables import IS_QUEUED, idempotency_keys, job_events, jobs
from tuner.store.retries import retry_job
from tuner.store.submissions import Submission, find_or_add


class JobStore(Database):
    """Posts, shows, cancels and deletes jobs. Workers use `tuner.store.Leases`.

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
        unmet: str = "",
        trace: str = "",
    ) -> Submitted:
        """Queue a job, or find the one that answers the request; see `submit_all`."""
        only = Submission(request, priority, unmet)
        (answer,) = self.submit_all(
            [only],
            client=client,
            idempotency_key=idempotency_key,
            body_hash=body_hash,
            fresh=fresh,
            trace=trace,
        )
        return answer

    def submit_all(
        self,
        wanted: Sequence[Submission],
        *,
        client: str = "local",
        idempotency_key: str | None = None,
        body_hash: str = "",
        fresh: timedelta = FRESH,
        trace: str = "",
    ) -> Sequence[Submitted]:
        """For each request, queue a job or find the one that answers it: all or none.

        A job answers a request if it has the same request and is unfinished, or was done within
        `fresh`. The jobs that this client got before with the same idempotency key are answered
        whatever became of them. All is committed on return. Raises IdempotencyConflict where the
        idempotency key was used before with another `body_hash`, and IdempotencyKeyInUse while any
        process works on another submission with that key.
        """
        if not wanted:
            return []
        with self._submission(client, idempotency_key) as connection:
            if idempotency_key is None:
                _, answers = find_or_add(connection, wanted, client, self._clock, fresh, trace)
                return answers
            if found := _earlier_answer(connection, client, idempotency_key, body_hash):
                return [Submitted(job, created=False, replayed=True) for job in found]
            now, answers = find_or_add(connection, wanted, client, self._clock, fresh, trace)
            ids = [answer.job.id for answer in answers]
            row = {
                "client": client,
                "key": idempotency_key,
                "body_hash": body_hash,
                "job_id": ids[0],
                "job_ids": ids if len(ids) > 1 else None,
                "created_at": now,
            }
            connection.execute(insert(idempotency_keys), row)
            return answers

    def get(self, job_id: str) -> Job:
        """The job. Raises UnknownJob."""
        with self._read() as connection:
            return get_job(connection, job_id)

    def with_ids(self, job_ids: Collection[str]) -> dict[str, Job]:
        """The jobs with these ids, by id. An id that no job has is left out."""
        query = select(jobs).where(jobs.c.id.in_(job_ids))
        with self._read() as connection:
            return {row["id"]: read_job(row) for row in connection.execute(query).mappings()}

    def list(
        self,
        query: JobQuery = ALL_JOBS,
        *,
        after: tuple[datetime, str] | None = None,
        limit: int = 50,
    ) -> Sequence[Job]:
        """A page of jobs; `after` is the (created_at, id) of the last one on the page before."""
        with self._read() as connection:
            rows = connection.execute(select_page(query, after, limit))
            return [read_job(row) for row in rows.mappings()]

    def cancel(self, job_id: str, client: str | None = None) -> Job:
        """Withdraw a client's interest in a job, and end the job with its last client.

        Without `client`, the job ends for all of them. A job that no worker has ends at once; a
        worker is asked to end one that it has. A finished job stays as it is. Raises UnknownJob.
        """
        with self._write() as connection:
            job, now = get_job(connection, job_id, lock=True), time_of(connection, self._clock)
            others = [] if client is None else [one for one in job.clients if one != client]
            if job.state.finished or job.cancel_requested:
                return job
            if others:
                if client in job.clients:
                    data = {"client": client, "remaining": len(others)}
                    append_event(connection, job_id, now, "withdrawn", data, clients=others)
            elif job.state is JobState.QUEUED or _abandoned(job, now):
                move(connection, job_id, JobState.CANCELLED, now)
                append_event(connection, job_id, now, JobState.CANCELLED.value, {})
            else:
                update_job(connection, job_id, cancel_requested=True)
                append_event(connection, job_id, now, "cancel_requested", {})
            return get_job(connection, job_id)

    def queued_of(self, client: str, most: int) -> int:
        """The number of queued jobs that a client posted, counted up to `most`."""
        mine = IS_QUEUED, jobs.c.needs_gpu.in_([False, True]), jobs.c.client == client
        some = select(jobs.c.id).where(*mine).limit(most).subquery()
        with self._read() as connection:
            return int(connection.execute(select(func.count()).select_from(some)).scalar_one())

    def ended(self, job_ids: Collection[str]) -> set[str]:
        """Which of these jobs have ended."""
        unfinished = [state.value for state in UNFINISHED]
        query = select(jobs.c.id).where(jobs.c.id.in_(job_ids), jobs.c.state.not_in(unfinished))
        with self._read() as connection:
            return set(connection.execute(query).scalars())

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

    def latest_events(self, job_id: str, limit: int, kind: str | None = None) -> Sequence[JobEvent]:
        """A job's newest events, of one kind if it is given, in order."""
        query = select(job_events).where(job_events.c.job_id == job_id)
        if kind is not None:
            query = query.where(job_events.c.kind == kind)
        query = query.order_by(job_events.c.seq.desc()).limit(limit)
        with self._read() as connection:
            rows = connection.execute(query).mappings().all()
            return [JobEvent(**row) for row in reversed(rows)]

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

    def delete(self, job_id: str) -> Job:
        """Delete a job that has ended; its run stays. Raises what `delete_job` raises."""
        with self._write() as connection:
            return delete_job(connection, job_id)


def _abandoned(job: Job, now: datetime) -> bool:
    return job.lease_expires_at is not None and job.lease_expires_at < now


def _earlier_answer(connection: Connection, client: str, key: str, body_hash: str) -> Sequence[Job]:
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

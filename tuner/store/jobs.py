"""Keep the queue for clients: post, show and cancel jobs, on a server and on this machine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Text,
    cast,
    delete,
    func,
    insert,
    select,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.exc import IntegrityError

from tuner.errors import (
    EqualJobUnfinished,
    IdempotencyKeyInUse,
    JobUnfinished,
    NotRetriable,
)
from tuner.jobs.job import (
    FRESH,
    Job,
    JobEvent,
    JobRequest,
    JobState,
    Priority,
    Submitted,
)
from tuner.jobs.queue import ALL_JOBS, JobQuery
from tuner.jobs.workers import WorkerStatus
from tuner.store.api_key import LOCAL
from tuner.store.database import Database, Queries
from tuner.store.job_rows import (
    append_event,
    get_job,
    lock_queue,
    move,
    read_job,
    refuse_full_queue,
    update_job,
)
from tuner.store.submissions import Asked, Unmet, earlier_answer, find_or_add
from tuner.store.tables import IS_COALESCIBLE, idempotency_keys, job_events, jobs
from tuner.store.workers import Estimates, WorkerStore


class JobStore(Queries):
    """Posts, shows, cancels and deletes jobs. Workers use `tuner.store.Leases`.

    Every method is a transaction, and raises UnusableStore when the database fails.
    """

    def submit_all(
        self,
        wanted: Sequence[Asked],
        *,
        unmet: Unmet = lambda _: "",
        client: str = "local",
        idempotency_key: str | None = None,
        body_hash: str = "",
        fresh: timedelta = FRESH,
        most: int | None = None,
    ) -> Sequence[Submitted]:
        """Queue a job for each request, or find the job that answers it: all or none.

        The events of a new job that no living worker can do have the reason of `unmet`. A job
        answers a request if it has the same request and is unfinished, or was done within `fresh`.
        The jobs that this client got before with the same idempotency key are answered in any
        state. All is committed on return. Raises IdempotencyConflict if the idempotency key was
        used before with another `body_hash`, IdempotencyKeyInUse while any process works on another
        submission with that key, and QueueFull if jobs would have to be added and the client would
        then have over `most` queued jobs.
        """
        if not wanted:
            return []
        more = client, self._clock, fresh, unmet, most
        with self._submission(client, idempotency_key) as connection:
            if idempotency_key is None:
                _, answers = find_or_add(connection, wanted, *more)
                return answers
            if found := earlier_answer(connection, client, idempotency_key, body_hash):
                return [Submitted(job, created=False, replayed=True) for job in found]
            now, answers = find_or_add(connection, wanted, *more)
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
        """Return the job. Raises UnknownJob."""
        with self._read() as connection:
            return get_job(connection, job_id)

    def with_ids(self, job_ids: Collection[str]) -> dict[str, Job]:
        """Return the jobs with these ids, by id. An id that no job has is left out."""
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
        """Return a page of jobs; `after` is the (created_at, id) of the last job on the page
        before.
        """
        with self._read() as connection:
            rows = connection.execute(select_page(query, after, limit))
            return [read_job(row) for row in rows.mappings()]

    def cancel(self, job_id: str, client: str | None = None) -> Job:
        """Withdraw a client's interest in a job, and end the job with its last client.

        Without `client`, the job ends for all of them. A job that no worker has ends at once; a
        worker that has the job is asked to end it. A finished job stays as it is. Raises
        UnknownJob.
        """
        with self._write() as connection:
            job, now = get_job(connection, job_id, lock=True), self._now(connection)
            others = [] if client is None else [one for one in job.clients if one != client]
            if job.state.finished or job.cancel_requested:
                return job
            if others:
                if client in job.clients:
                    data = {"client": client, "remaining": len(others)}
                    append_event(connection, job_id, now, "withdrawn", data, clients=others)
            elif job.state is JobState.QUEUED or (
                job.lease_expires_at is not None and job.lease_expires_at < now
            ):
                move(connection, job_id, JobState.CANCELLED, now)
                append_event(connection, job_id, now, JobState.CANCELLED.value, {})
            else:
                update_job(connection, job_id, cancel_requested=True)
                append_event(connection, job_id, now, "cancel_requested", {})
            return get_job(connection, job_id)

    def events(self, job_id: str, after: int = 0, limit: int = 1000) -> Sequence[JobEvent]:
        """Return a job's events with numbers above `after`, in order; none for an unknown job."""
        query = (
            select(job_events)
            .where(job_events.c.job_id == job_id, job_events.c.seq > after)
            .order_by(job_events.c.seq)
            .limit(limit)
        )
        with self._read() as connection:
            return [JobEvent(**row) for row in connection.execute(query).mappings()]

    def latest_events(self, job_id: str, limit: int, kind: str | None = None) -> Sequence[JobEvent]:
        """Return a job's newest events, of a single kind if it is given, in order."""
        query = select(job_events).where(job_events.c.job_id == job_id)
        if kind is not None:
            query = query.where(job_events.c.kind == kind)
        query = query.order_by(job_events.c.seq.desc()).limit(limit)
        with self._read() as connection:
            rows = connection.execute(query).mappings().all()
            return [JobEvent(**row) for row in reversed(rows)]

    def event_counts(self, job_ids: Collection[str]) -> dict[str, int]:
        """Return the number of events of each of these jobs. Unknown jobs are left out."""
        query = select(jobs.c.id, jobs.c.event_count).where(jobs.c.id.in_(job_ids))
        with self._read() as connection:
            return {row.id: row.event_count for row in connection.execute(query)}

    def counts(self, wanted: JobQuery = ALL_JOBS) -> dict[JobState, int]:
        """Return the number of jobs in each state; the query's own states are ignored.

        States without jobs are left out.
        """
        query = select(jobs.c.state, func.count()).group_by(jobs.c.state)
        with self._read() as connection:
            rows = connection.execute(query.where(*_conditions(wanted, None)))
            return {JobState(state): count for state, count in rows}

    def forget_idempotency_keys(self, older_than: timedelta = timedelta(days=7)) -> int:
        """Delete old keys and return their number. Their jobs stay."""
        with self._write() as connection:
            old = idempotency_keys.c.created_at < self._now(connection) - older_than
            return connection.execute(delete(idempotency_keys).where(old)).rowcount

    def _submission(
        self, client: str, idempotency_key: str | None
    ) -> AbstractContextManager[Connection]:
        if idempotency_key is None:
            return self._write()
        name = f"submit {client} {idempotency_key}"
        return self.database.write_locked(name, IdempotencyKeyInUse())

    def retry(self, job_id: str, client: str = "local", most: int | None = None) -> Job:
        """Queue the job again, with all its attempts. An unfinished job stays as it is.

        Raises UnknownJob, NotRetriable for a job that is done or being cancelled,
        EqualJobUnfinished if another job does the same work, and QueueFull if the client that
        posted it would then have over `most` queued jobs.
        """
        with self._write() as connection:
            if most is not None:
                lock_queue(connection, get_job(connection, job_id).client)
            job, now = get_job(connection, job_id, lock=True), self._now(connection)
            if job.state is JobState.DONE:
                raise NotRetriable(f"job {job_id} is done: submit it anew to do its work again")
            if not job.state.finished and job.cancel_requested:
                raise NotRetriable(f"job {job_id} is being cancelled: retry it when it has ended")
            if not job.state.finished:
                return job  # it was retried before
            # Nobody waits any more for a job that was cancelled.
            waiting = [] if job.state is JobState.CANCELLED else list(job.clients)
            values: dict[str, Any] = {
                **{"attempts": 0, "trial_count": 0, "cancel_requested": False},
                **{"available_at": now, "announced_at": now},
                **{"started_at": None, "finished_at": None},
                "clients": waiting if client in waiting else [*waiting, client],
            }
            try:
                with connection.begin_nested():
                    move(connection, job_id, JobState.QUEUED, now, **values)
            except IntegrityError:
                raise EqualJobUnfinished(_equal(connection, job_id)) from None
            if most is not None:
                refuse_full_queue(connection, job.client, most, 1)
            append_event(connection, job_id, now, "retried", {"client": client})
            return get_job(connection, job_id)

    def delete(self, job_id: str) -> Job:
        """Delete the job, its events, and the idempotency keys that were answered with it alone.

        A key of a batch stays until the last of its jobs is deleted. The job's run stays, with all
        its trials and winners. Returns the job as it was. Raises UnknownJob, and JobUnfinished for
        a job that has not ended.
        """
        with self._write() as connection:
            job = get_job(connection, job_id, lock=True)
            if not job.state.finished:
                raise JobUnfinished(
                    f"job {job_id} is {job.state.value}: cancel it first, and delete it when it "
                    "has ended"
                )
            of_batch = cast(idempotency_keys.c.job_ids, Text).contains(job_id)
            answered = (idempotency_keys.c.job_id == job_id) | of_batch
            for key in connection.execute(select(idempotency_keys).where(answered)).all():
                mine = idempotency_keys.c.client == key.client, idempotency_keys.c.key == key.key
                if rest := [one for one in key.job_ids or () if one != job_id]:
                    values = {"job_id": rest[0], "job_ids": rest}
                    connection.execute(update(idempotency_keys).where(*mine).values(values))
                else:
                    connection.execute(delete(idempotency_keys).where(*mine))
            connection.execute(delete(job_events).where(job_events.c.job_id == job_id))
            connection.execute(delete(jobs).where(jobs.c.id == job_id))
        return job


def select_page(query: JobQuery, after: tuple[datetime, str] | None, limit: int) -> Select[Any]:
    """Select at most `limit` jobs, the newest first, from behind the place `after`.

    Each state's part is a walk along an index that stops after `limit` rows. With `state IN (...)`
    PostgreSQL 15 would read and sort all jobs in those states, or walk over all others.
    """
    conditions = _conditions(query, after)
    if not query.states or query.states == set(JobState):
        return _newest(select(jobs).where(*conditions), limit)
    states = sorted(state.value for state in query.states)
    if len(states) == 1:
        return _newest(select(jobs).where(*conditions, jobs.c.state == states[0]), limit)
    # The walks give places alone: SQLAlchemy takes milliseconds for unions of whole rows.
    place = select(jobs.c.created_at, jobs.c.id).where(*conditions)
    walks = [_newest(place.where(jobs.c.state == one), limit) for one in states]
    # SQLite takes a LIMIT within a union only in a subquery.
    places = union_all(*(select(walk.subquery()) for walk in walks)).subquery()
    first = _newest(select(places), limit).subquery()
    return _newest(select(jobs).join(first, jobs.c.id == first.c.id), limit)


def _conditions(query: JobQuery, after: tuple[datetime, str] | None) -> list[ColumnElement[bool]]:
    place = tuple_(jobs.c.created_at, jobs.c.id)
    conditions: list[ColumnElement[bool]] = []
    for column, value in (
        (jobs.c.device, query.device),
        (jobs.c.client, query.client),
    ):
        if value is not None:
            conditions.append(column == value)
    if query.model is not None:
        conditions.append(jobs.c.model.icontains(query.model, autoescape=True))
    if after is not None:
        conditions.append(place < after)
    return conditions


def _newest(rows: Select[Any], limit: int) -> Select[Any]:
    columns = rows.selected_columns
    return rows.order_by(columns["created_at"].desc(), columns["id"].desc()).limit(limit)


def _equal(connection: Connection, job_id: str) -> str:
    key = select(jobs.c.request_key).where(jobs.c.id == job_id).scalar_subquery()
    equal = select(jobs.c.id, jobs.c.state).where(jobs.c.request_key == key, IS_COALESCIBLE)
    row = connection.execute(equal).one_or_none()
    if row is None:  # it has just ended
        return "an equal job was unfinished: try again"
    return f"job {row.id} asks for the same work and is {row.state}: follow that job"


class LocalQueue(Queries):
    """The queue of a database, with the methods of `RemoteQueue`. Methods raise UnusableStore."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._jobs, self._workers = JobStore(database), WorkerStore(database)

    def get(self, job_id: str) -> Job:
        """Return a job. Raises UnknownJob."""
        return self._jobs.get(job_id)

    def list(self, query: JobQuery = ALL_JOBS, *, limit: int = 50) -> Sequence[Job]:
        """List jobs, the newest first."""
        return self._jobs.list(query, limit=limit)

    def events(self, job_id: str, after: int = 0) -> Sequence[JobEvent]:
        """List a job's events with numbers above `after`, in order; none for an unknown job."""
        return self._jobs.events(job_id, after)

    def workers(self) -> Sequence[WorkerStatus]:
        """List the workers."""
        return self._workers.list()

    def drain(self, name: str) -> Sequence[str]:
        """Let workers take no more jobs; see `WorkerStore.drain`."""
        return self._workers.drain(name)

    def resume(self, name: str) -> Sequence[str]:
        """Let workers take jobs again; see `WorkerStore.resume`."""
        return self._workers.resume(name)

    def submit_all(
        self, requests: Sequence[JobRequest], *, priority: Priority
    ) -> Sequence[Submitted]:
        """Queue jobs, or find the jobs that answer the requests: all or none."""
        estimates, reasons = Estimates(self.database), self._workers.reasons()
        wanted = [(request, priority) for request in requests]
        answers = self._jobs.submit_all(wanted, unmet=reasons.unmet, client=LOCAL)
        return [replace(one, estimated_gpu_s=estimates.of(one.job)) for one in answers]

    def cancel(self, job_id: str, *, everyone: bool = False) -> Job:
        """Withdraw from the job, or end it for everyone. Raises UnknownJob."""
        return self._jobs.cancel(job_id, None if everyone else LOCAL)

    def retry(self, job_id: str) -> Job:
        """Queue a dead, failed or cancelled job again. Raises UnknownJob and NotRetriable."""
        return self._jobs.retry(job_id, LOCAL)

    def waiting(self, job: Job) -> str:
        """Say why a job does not go on; "" if nothing is known to hinder it."""
        return self._workers.reasons().why(job)

    def list_waiting(
        self, query: JobQuery = ALL_JOBS, *, limit: int = 50
    ) -> Sequence[tuple[Job, str]]:
        """List jobs, each with the reason why it does not go on."""
        found = self.list(query, limit=limit)
        reasons = self._workers.reasons()
        return [(job, reasons.why(job)) for job in found]

"""The queue for workers: claims, leases, and writes that need a lease."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, RowMapping, func, select, tuple_

from tuner.errors import RunAlreadyActive, StaleLease
from tuner.jobs.job import HELD, LEASE, MAX_ATTEMPTS, Job, JobFilter, JobState, Lease, read_request
from tuner.jobs.limits import Exceeded, Held, Phase
from tuner.problems.points import Point
from tuner.problems.records import Run, RunKey
from tuner.problems.results import Entry, Totals, Trial
from tuner.store.claims import age, due, next_queued, take_turn
from tuner.store.database import Clock, Database, time_of
from tuner.store.job_rows import UNREADABLE, append_event, move, read_if_possible, update_job
from tuner.store.job_tables import IS_QUEUED, job_events, jobs
from tuner.store.rows import storable
from tuner.store.schema import check_head
from tuner.store.store import Store
from tuner.store.tables import POINT_COLUMNS, trials
from tuner.store.workers import may_claim, set_worker_aside

_HELD = [state.value for state in HELD]
RETRY_DELAY = timedelta(seconds=2)  # after the first attempt; doubled after each further one
REFUSALS = 10  # of workers that could not begin to tune a job; further ones count as attempts
UNREADABLE_DELAY = timedelta(minutes=1)  # for an upgrade to reach a worker that can read the job


class Leases(Database):
    """Claims jobs and keeps or gives up their leases.

    Every method is one transaction, and raises UnusableStore when the database fails. A method that
    takes a Lease raises StaleLease, and writes nothing, once the lease is lost.
    """

    def __init__(self, engine: Engine, clock: Clock | None = None) -> None:
        super().__init__(engine)
        self._clock = clock

    def claim(
        self, filters: Sequence[JobFilter], owner: str, preferred: Mapping[str, str] | None = None
    ) -> Lease | None:
        """Claim the next job of the first filter that has one; None also for a drained worker.

        The most urgent jobs come first, and among them the one of the client that was served
        longest ago. `preferred` tells what an engine without a version means to the worker, as
        `sglang==0.5.16`: a job without a version gets it. Raises UnusableStore, too, where the
        schema is no longer this program's.
        """
        with self._write() as connection:
            check_head(connection)  # a newer program's jobs are for its own workers
            now = time_of(connection, self._clock)
            if not may_claim(connection, owner):
                return None
            while row := next_queued(connection, filters, now):
                values = _claimed(row, owner, now, preferred or {})
                move(connection, row["id"], JobState.LEASED, now, **values)
                data = {"owner": owner, "attempt": values["attempts"]}
                append_event(connection, row["id"], now, JobState.LEASED.value, data)
                take_turn(connection, row["client"])
                try:
                    request = read_request(values["request"])
                    return Lease(row["id"], owner, values["fence"], request, row["trace"])
                except UNREADABLE as error:  # a newer version's job: leave it to its workers
                    reason = f"{owner} cannot read the request: {error}"
                    _give_back(connection, {**row, **values}, now, reason, UNREADABLE_DELAY)
        return None

    def heartbeat(self, lease: Lease) -> None:
        """Extend the lease to `LEASE` from now."""
        with self._write() as connection:
            mine = _leased_row(connection, lease)["id"]
            expiry = time_of(connection, self._clock) + LEASE
            update_job(connection, mine, lease_expires_at=expiry)

    def look(self, lease: Lease) -> Held:
        """What the store says of the lease's job. Writes nothing."""
        with self._read() as connection:
            return _held(_leased_row(connection, lease, lock=False))

    def fail(self, lease: Lease, reason: str) -> None:
        """End the job FAILED: another attempt would fail as well."""
        self._end(lease, JobState.FAILED, {"reason": reason}, error=storable(reason))

    def cancelled(self, lease: Lease) -> None:
        """End the job CANCELLED, after a client asked for it."""
        self._end(lease, JobState.CANCELLED, {})

    def retry(self, lease: Lease, reason: str) -> JobState:
        """Give the job back after a failed attempt: QUEUED with a delay, DEAD after the last."""
        with self._write() as connection:
            row, now = _leased_row(connection, lease), time_of(connection, self._clock)
            delay = RETRY_DELAY * 2 ** (row["attempts"] - 1)
            return _give_back(connection, row, now, reason, delay)

    def release(
        self,
        lease: Lease,
        reason: str = "the worker stopped",
        delay: timedelta = timedelta(0),
    ) -> None:
        """Give the job back without counting the attempt. It can be claimed again after `delay`."""
        with self._write() as connection:
            row, now = _leased_row(connection, lease), time_of(connection, self._clock)
            update_job(connection, row["id"], attempts=row["attempts"] - 1)
            _give_back(connection, row, now, reason, delay, capped=False)

    def refuse(self, lease: Lease, reason: str) -> None:
        """Give the job back because this worker could not begin to tune it.

        That counts no attempt, unless so many workers refused the job that it must be its fault.
        """
        with self._write() as connection:
            row, now = _leased_row(connection, lease), time_of(connection, self._clock)
            _refuse(connection, row, now, reason)

    def held(self) -> Mapping[str, Held]:
        """The jobs that workers hold, by id."""
        with self._read() as connection:
            rows = connection.execute(select(jobs).where(jobs.c.state.in_(_HELD))).mappings()
            return {row["id"]: _held(row) for row in rows}

    def take_back(self, job_id: str, seen: Held, why: Exceeded) -> Job | None:
        """Take a held job from its worker, unless it changed since it was `seen`.

        A worker that renews its lease and never begins to tune is set aside. Several processes may
        do this at once. Returns the job; None where it changed, or this version cannot read it.
        """
        with self._write() as connection:
            now = time_of(connection, self._clock)
            query = select(jobs).where(jobs.c.id == job_id, jobs.c.state.in_(_HELD))
            locked = query.with_for_update(skip_locked=True)
            row = connection.execute(locked).mappings().one_or_none()
            if row is None or _held(row) != seen:
                return None
            if why.phase is Phase.START:
                _refuse(connection, row, now, why.reason)
                set_worker_aside(connection, row["owner"], why.reason)
            else:
                _give_back(connection, row, now, why.reason, timedelta(0))
            taken = connection.execute(select(jobs).where(jobs.c.id == job_id)).mappings().one()
            return read_if_possible(taken)

    def age(self) -> int:
        """Make jobs urgent that waited for long, so that urgent ones cannot hold them up for ever.

        Returns their number.
        """
        with self._write() as connection:
            return age(connection, time_of(connection, self._clock))

    def unannounced(self, since: timedelta) -> Job | None:
        """The queued job whose announcement is the oldest, if it is older than `since`.

        The caller announces it, so its announcement is now. One job at a time is enough, and keeps
        messages few: a worker that is awake does jobs until none is left.
        """
        with self._write() as connection:
            now = time_of(connection, self._clock)
            query = (
                select(jobs)
                .where(IS_QUEUED, jobs.c.announced_at < now - since, due(now))
                .order_by(jobs.c.announced_at)
                .limit(1)
                .with_for_update(skip_locked=True)
            )
            row = connection.execute(query).mappings().one_or_none()
            if row is None:
                return None
            update_job(connection, row["id"], announced_at=now)
            return read_if_possible(row)

    def store(self, lease: Lease) -> LeasedStore:
        """The store for that job's worker. It shares this object's connections."""
        return LeasedStore(self._engine, lease, self._clock)

    def _end(
        self, lease: Lease, state: JobState, data: Mapping[str, Any], **values: object
    ) -> None:
        with self._write() as connection:
            job_id, now = _leased_row(connection, lease)["id"], time_of(connection, self._clock)
            move(connection, job_id, state, now, **values)
            append_event(connection, job_id, now, state.value, data)


class LeasedStore(Store):
    """A store whose every write needs a job's lease.

    Writes raise StaleLease once the lease is lost. Beginning the run makes the job RUNNING.
    Finishing it publishes the winners and makes the job DONE in one transaction, so that nothing is
    published twice. Beginning a run that another job is working on raises RunAlreadyActive.
    """

    def __init__(self, engine: Engine, lease: Lease, clock: Clock | None = None) -> None:
        super().__init__(engine)
        self._lease = lease
        self._clock = clock

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with super()._write() as connection:
            _leased_row(connection, self._lease)
            yield connection

    def _begin(self, connection: Connection, key: RunKey) -> Run:
        run = super()._begin(connection, key)  # this locks the run's row
        same = jobs.c.run_id == run.id, jobs.c.state == JobState.RUNNING.value
        other = select(jobs.c.id).where(*same, jobs.c.id != self._lease.job_id).limit(1)
        if found := connection.execute(other).scalar_one_or_none():
            raise RunAlreadyActive(f"job {found} is working on the same run")
        now = time_of(connection, self._clock)
        move(connection, self._lease.job_id, JobState.RUNNING, now, run_id=run.id)
        data = {"run_id": run.id, "environment": asdict(key.environment)}
        append_event(connection, self._lease.job_id, now, JobState.RUNNING.value, data)
        return run

    def _add(self, connection: Connection, run: Run, new: Sequence[Trial]) -> int:
        inserted = super()._add(connection, run, new)
        best = _best(connection, run.id, [trial.candidate.point for trial in new])
        data = {"tried": len(new), "new": inserted, "best_us": best}
        now = time_of(connection, self._clock)
        count = jobs.c.trial_count + len(new)
        append_event(connection, self._lease.job_id, now, "trials", data, trial_count=count)
        return inserted

    def _finish(
        self, connection: Connection, run: Run, entries: Iterable[Entry], totals: Totals
    ) -> None:
        super()._finish(connection, run, entries, totals)
        now = time_of(connection, self._clock)
        move(connection, self._lease.job_id, JobState.DONE, now, error="")
        data = {"run_id": run.id, "totals": asdict(totals)}
        append_event(connection, self._lease.job_id, now, JobState.DONE.value, data)


def _leased_row(connection: Connection, lease: Lease, *, lock: bool = True) -> RowMapping:
    """The row of the lease's job, with `lock` locked until the transaction ends.

    Raises StaleLease once the lease is lost.
    """
    query = select(jobs).where(
        jobs.c.id == lease.job_id, jobs.c.fence == lease.fence, jobs.c.state.in_(_HELD)
    )
    row = connection.execute(query.with_for_update() if lock else query).mappings().one_or_none()
    if row is None:
        raise StaleLease(f"job {lease.job_id} was given to another worker, or ended")
    return row


def _claimed(
    row: RowMapping, owner: str, now: datetime, preferred: Mapping[str, str]
) -> dict[str, Any]:
    """What a claim changes in a job's row."""
    request = dict(row["request"])
    engine = preferred.get(request.get("engine", "")) or row["engine"]
    if engine:
        request["engine"] = engine
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


def _held(row: RowMapping) -> Held:
    return Held(
        fence=row["fence"],
        owner=row["owner"],
        began=row["state"] == JobState.RUNNING.value,
        trial_count=row["trial_count"],
        renewal=row["lease_expires_at"],
        cancel_requested=row["cancel_requested"],
    )


def _refuse(connection: Connection, row: RowMapping, now: datetime, reason: str) -> None:
    mine, kind = job_events.c.job_id == row["id"], job_events.c.kind
    retried = select(func.max(job_events.c.seq)).where(mine, kind == "retried").scalar_subquery()
    since = job_events.c.seq > func.coalesce(retried, 0)
    refusals = select(func.count()).select_from(job_events).where(mine, kind == "refused", since)
    count = connection.execute(refusals).scalar_one()
    capped = count >= REFUSALS
    if not capped:
        update_job(connection, row["id"], attempts=row["attempts"] - 1)
    _give_back(connection, row, now, reason, RETRY_DELAY, kind="refused", capped=capped)


def _give_back(
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


def _best(connection: Connection, run_id: int, points: Iterable[Point]) -> dict[str, float]:
    """The best time of the run so far, in microseconds, at each of these points that has one."""
    wanted = {(p.part.value, p.batch_size, p.new_tokens, p.cached_tokens): str(p) for p in points}
    place = [trials.c[name] for name in POINT_COLUMNS]
    query = (
        select(*place, func.min(trials.c.median_us))
        .where(trials.c.run_id == run_id, trials.c.median_us.is_not(None))
        .where(tuple_(*place).in_(list(wanted)))
        .group_by(*place)
    )
    best = {(*at,): time_us for *at, time_us in connection.execute(query)}
    return {name: best[at] for at, name in wanted.items() if at in best}

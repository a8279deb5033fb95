"""Keep the queue for workers: claim jobs, and keep or give up leases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    and_,
    func,
    or_,
    select,
    tuple_,
)

from tuner.errors import RunAlreadyActive
from tuner.jobs.attempts import AttemptPhase, Exceeded, HeldJob
from tuner.jobs.job import (
    LEASE,
    PLANNED,
    Cost,
    Job,
    JobFilter,
    JobState,
    Lease,
    Priority,
    UnreadableRequest,
    read_if_possible,
)
from tuner.problems.points import TRITON, Candidate, Point
from tuner.problems.results import Entry, Outlook, Run, RunKey, Totals, Trial
from tuner.store.database import Clock, Database, Queries, check_head, insert_into
from tuner.store.job_rows import (
    IS_HELD,
    RETRY_DELAY,
    append_event,
    claimed,
    cost_columns,
    give_back,
    held_of,
    leased_row,
    leave_unreadable,
    move,
    read_job,
    refuse,
    update_job,
)
from tuner.store.results import ResultStore
from tuner.store.rows import storable
from tuner.store.tables import IS_QUEUED, POINT_COLUMNS, client_turns, jobs, trials
from tuner.store.workers import may_claim, set_worker_aside

# No job is told to wait for longer. A job that seems to was told so before the clock went back.
LONGEST_DELAY = timedelta(minutes=5)
AGED = timedelta(hours=1)


def next_queued(
    connection: Connection, filters: Sequence[JobFilter], now: datetime
) -> RowMapping | None:
    """Return the row of the next job of the first filter that has a job, locked."""
    for wanted in filters:
        for client in _clients_in_turn(connection, wanted, now):
            query = candidates(wanted, now, jobs.c.client == client).with_for_update(
                skip_locked=True
            )
            if row := connection.execute(query).mappings().one_or_none():
                return row
    return None


def take_turn(connection: Connection, client: str) -> None:
    """Put a client behind all others."""
    last = func.coalesce(select(func.max(client_turns.c.turn)).scalar_subquery(), 0) + 1
    insert = insert_into(connection, client_turns).values(client=client, turn=last)
    set_ = {"turn": insert.excluded.turn}
    connection.execute(
        insert.on_conflict_do_update(index_elements=[client_turns.c.client], set_=set_)
    )


def due(now: datetime) -> ColumnElement[bool]:
    """Return the condition that a queued job may be claimed now."""
    return or_(jobs.c.available_at <= now, jobs.c.available_at > now + LONGEST_DELAY)


def _clients_in_turn(connection: Connection, wanted: JobFilter, now: datetime) -> list[str]:
    """Return the clients with jobs for a filter: urgent jobs first, then the longest unserved.

    An urgent job is not first if a client whose job waited for `AGED` was served longer ago than
    all clients with urgent jobs.
    """
    clients = _queued_clients(wanted.needs_gpu)
    first = (
        candidates(wanted, now, jobs.c.client == clients.c.client)
        .with_only_columns(jobs.c.id)
        .correlate(clients)
        .scalar_subquery()
    )
    job = jobs.alias()
    query = (
        select(clients.c.client, job.c.priority, job.c.available_at.label("since"))
        .add_columns(func.coalesce(client_turns.c.turn, 0).label("turn"))
        .select_from(clients)
        .join(job, job.c.id == first)
        .outerjoin(client_turns, client_turns.c.client == clients.c.client)
        .where(clients.c.client.is_not(None))
    )
    found: list[Any] = list(connection.execute(query).all())
    in_turn = sorted(found, key=lambda row: (row.turn, row.client))
    urgent = [row.client for row in in_turn if row.priority == Priority.URGENT]
    others = [row.client for row in in_turn if row.priority != Priority.URGENT]
    pressing = [one for one in in_turn if one.priority == Priority.URGENT or one.since < now - AGED]
    # A job that waited for long takes turns with urgent jobs, and passes by no other client's.
    if pressing and pressing[0].priority != Priority.URGENT:
        return [*others, *urgent]
    return [*urgent, *others]


def _queued_clients(needs_gpu: bool) -> CTE:
    """Select each client with queued jobs once, by a step along the index for each client.

    DISTINCT would read the entries of all queued jobs.
    """
    mine = and_(IS_QUEUED, jobs.c.needs_gpu == needs_gpu)
    walk = select(func.min(jobs.c.client).label("client")).where(mine).cte("walk", recursive=True)
    further = select(func.min(jobs.c.client)).where(mine, jobs.c.client > walk.c.client)
    return walk.union_all(
        select(further.correlate(walk).scalar_subquery()).where(walk.c.client.is_not(None))
    )


def candidates(wanted: JobFilter, now: datetime, mine: ColumnElement[bool]) -> Select[Any]:
    """Select the first job that a filter lets through, among the jobs for which `mine` is true."""
    query = (
        select(jobs)
        .where(IS_QUEUED, jobs.c.needs_gpu == wanted.needs_gpu, mine, due(now))
        .order_by(jobs.c.priority, jobs.c.created_at, jobs.c.id)
        .limit(1)
    )
    if wanted.devices is not None:
        query = query.where(jobs.c.device.in_(wanted.devices))
    if wanted.engines is not None:
        query = query.where(jobs.c.engine.in_(wanted.engines))
    return query


class Leases(Queries):
    """Claims jobs and keeps or gives up their leases.

    Every method is a transaction, and raises UnusableStore when the database fails. A method that
    takes a Lease raises StaleLease, and writes nothing, once the lease is lost.
    """

    def claim(
        self, filters: Sequence[JobFilter], owner: str, preferred: Mapping[str, str] | None = None
    ) -> Lease | None:
        """Claim the next job of the first filter that has a job; None also for a drained worker.

        The most urgent jobs come first, and among them the job of the client that was served
        longest ago. `preferred` gives the worker's version of an engine without a version, as
        `sglang==0.5.16`: the lease's request has it, and the job too once its run has begun. Raises
        UnusableStore, too, if the schema is no longer this program's.
        """
        with self._write() as connection:
            check_head(connection)  # a newer program's jobs are for its own workers
            now = self._now(connection)
            if not may_claim(connection, owner):
                return None
            while row := next_queued(connection, filters, now):
                request = read_if_possible(row["request"])
                if isinstance(request, UnreadableRequest):
                    leave_unreadable(connection, row, owner, now, request.why)
                    continue
                values = claimed(row, owner, now)
                move(connection, row["id"], JobState.LEASED, now, **values)
                data = {"owner": owner, "attempt": values["attempts"]}
                append_event(connection, row["id"], now, JobState.LEASED.value, data)
                take_turn(connection, row["client"])
                engine = (preferred or {}).get(request.engine, request.engine)
                request = replace(request, engine=engine)
                return Lease(row["id"], owner, values["fence"], request)
        return None

    def heartbeat(self, lease: Lease) -> None:
        """Extend the lease to `LEASE` from now."""
        with self._write() as connection:
            mine = leased_row(connection, lease)["id"]
            expiry = self._now(connection) + LEASE
            update_job(connection, mine, lease_expires_at=expiry)

    def look(self, lease: Lease) -> HeldJob:
        """Return the lease's job as the store has it. Writes nothing."""
        with self._read() as connection:
            return held_of(leased_row(connection, lease, lock=False))

    def fail(self, lease: Lease, reason: str) -> None:
        """End the job FAILED: another attempt would fail as well."""
        self._end(lease, JobState.FAILED, {"reason": reason}, error=storable(reason))

    def cancelled(self, lease: Lease) -> None:
        """End the job CANCELLED, after a client asked for it."""
        self._end(lease, JobState.CANCELLED, {})

    def retry(self, lease: Lease, reason: str) -> JobState:
        """Give the job back after a failed attempt: QUEUED with a delay, DEAD after the last."""
        with self._write() as connection:
            row, now = leased_row(connection, lease), self._now(connection)
            delay = RETRY_DELAY * 2 ** (row["attempts"] - 1)
            return give_back(connection, row, now, reason, delay)

    def release(
        self, lease: Lease, reason: str = "the worker stopped", delay: timedelta = timedelta(0)
    ) -> None:
        """Give the job back without counting the attempt. It can be claimed again after `delay`."""
        with self._write() as connection:
            row, now = leased_row(connection, lease), self._now(connection)
            update_job(connection, row["id"], attempts=row["attempts"] - 1)
            give_back(connection, row, now, reason, delay, capped=False)

    def refuse(self, lease: Lease, reason: str) -> None:
        """Give the job back because this worker could not begin to tune it.

        That counts no attempt, unless so many workers refused the job that it must be its fault.
        """
        with self._write() as connection:
            row, now = leased_row(connection, lease), self._now(connection)
            refuse(connection, row, now, reason)

    def held(self) -> Mapping[str, HeldJob]:
        """Return the jobs that workers hold, by id."""
        with self._read() as connection:
            rows = connection.execute(select(jobs).where(IS_HELD)).mappings()
            return {row["id"]: held_of(row) for row in rows}

    def take_back(self, job_id: str, seen: HeldJob, why: Exceeded) -> Job | None:
        """Take a held job from its worker, unless it changed since it was `seen`.

        A worker that renews its lease and never begins to tune is set aside. A job that was not
        begun loses no attempt. Several processes may do this at once. Returns the job; None if it
        changed.
        """
        with self._write() as connection:
            now = self._now(connection)
            query = select(jobs).where(jobs.c.id == job_id, IS_HELD)
            locked = query.with_for_update(skip_locked=True)
            row = connection.execute(locked).mappings().one_or_none()
            if row is None or held_of(row) != seen:
                return None
            if why.phase is AttemptPhase.START:
                set_worker_aside(connection, row["owner"], why.reason)
            give = refuse if seen.phase is AttemptPhase.START else give_back
            give(connection, row, now, why.reason, timedelta(0))
            taken = connection.execute(select(jobs).where(jobs.c.id == job_id)).mappings().one()
            return read_job(taken)

    def unannounced(self, since: timedelta) -> Job | None:
        """Return the queued job whose announcement is the oldest, if it is older than `since`.

        The caller announces it, so its announcement is now. One job at a time is enough, and keeps
        messages few: a worker that is awake does jobs until none is left.
        """
        with self._write() as connection:
            now = self._now(connection)
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
            return read_job(row)

    def store(self, lease: Lease) -> LeasedResults:
        """Return the results for that job's worker to write. They share this object's
        connections.
        """
        return LeasedResults(self.database, lease, self._clock)

    def _end(
        self, lease: Lease, state: JobState, data: Mapping[str, Any], **values: object
    ) -> None:
        with self._write() as connection:
            job_id, now = leased_row(connection, lease)["id"], self._now(connection)
            move(connection, job_id, state, now, **values)
            append_event(connection, job_id, now, state.value, data)


class LeasedResults(ResultStore):
    """Results whose every write needs a job's lease.

    Writes raise StaleLease once the lease is lost. Beginning the run makes the job RUNNING.
    Finishing it publishes the winners and makes the job DONE in the same transaction, so that
    nothing is published twice. Beginning a run that another job is working on raises
    RunAlreadyActive.
    """

    def __init__(self, database: Database, lease: Lease, clock: Clock | None = None) -> None:
        super().__init__(database, clock)
        self._write = self._write_leased
        self._lease = lease
        self._incumbents: dict[Candidate, str] = {}  # their names

    @contextmanager
    def _write_leased(self) -> Iterator[Connection]:
        with self.database.write() as connection:
            leased_row(connection, self._lease)
            yield connection

    def expect(self, run: Run, outlook: Outlook) -> None:
        """Note the configurations that the run will try, as an event of the job."""
        named = {
            Candidate(point, config): name
            for point, by_name in outlook.incumbents.items()
            for name, config in by_name.items()
        }
        data = {
            "to_try": outlook.to_try,
            "incumbents": [
                {
                    **point.as_json(),
                    "point": str(point),
                    "configs": {name: dict(config) for name, config in by_name.items()},
                }
                for point, by_name in sorted(outlook.incumbents.items())
            ],
        }
        with self._write() as connection:
            now = self._now(connection)
            append_event(connection, self._lease.job_id, now, PLANNED, data)
        self._incumbents = named

    def _begin(self, connection: Connection, key: RunKey) -> Run:
        run = super()._begin(connection, key)  # this locks the run's row
        same = jobs.c.run_id == run.id, jobs.c.state == JobState.RUNNING.value
        other = select(jobs.c.id).where(*same, jobs.c.id != self._lease.job_id).limit(1)
        if found := connection.execute(other).scalar_one_or_none():
            raise RunAlreadyActive(f"job {found} is working on the same run")
        now = self._now(connection)
        # The version is the job's own from here on: a later attempt goes on with the same run.
        asked = select(jobs.c.request).where(jobs.c.id == self._lease.job_id)
        engine = self._lease.request.engine
        request = {**connection.execute(asked).scalar_one(), "engine": engine}
        begun = {"run_id": run.id, "engine": engine, "request": request}
        move(connection, self._lease.job_id, JobState.RUNNING, now, **begun)
        data = {"run_id": run.id, "environment": asdict(key.environment)}
        append_event(connection, self._lease.job_id, now, JobState.RUNNING.value, data)
        return run

    def _add(self, connection: Connection, run: Run, new: Sequence[Trial]) -> int:
        inserted = super()._add(connection, run, new)
        best = _best(connection, run.id, [trial.candidate.point for trial in new])
        data = {
            "tried": len(new),
            "new": inserted,
            "statuses": Counter(trial.measurement.status.value for trial in new),
            "best_us": best,
            "incumbents_us": self._incumbent_times(new),
        }
        now = self._now(connection)
        count = jobs.c.trial_count + len(new)
        append_event(connection, self._lease.job_id, now, "trials", data, trial_count=count)
        return inserted

    def _incumbent_times(self, new: Sequence[Trial]) -> dict[str, dict[str, float]]:
        """Return the times of the incumbents among some trials, by point and name."""
        found: dict[str, dict[str, float]] = {}
        for trial in new:
            name, time_us = self._incumbents.get(trial.candidate), trial.measurement.median_us
            if name is not None and time_us is not None:
                found.setdefault(str(trial.candidate.point), {})[name] = time_us
        return found

    def _finish(
        self, connection: Connection, run: Run, entries: Iterable[Entry], totals: Totals
    ) -> None:
        super()._finish(connection, run, entries, totals)
        now = self._now(connection)
        cost = cost_columns(Cost.of(totals))
        move(connection, self._lease.job_id, JobState.DONE, now, error="", **cost)
        data = {"run_id": run.id, "totals": asdict(totals)}
        append_event(connection, self._lease.job_id, now, JobState.DONE.value, data)


def _best(connection: Connection, run_id: int, points: Iterable[Point]) -> dict[str, float]:
    """Return Triton's best time of the run so far, in microseconds, at each of these points that
    has a time.
    """
    wanted = {(p.part.value, p.batch_size, p.new_tokens, p.cached_tokens): str(p) for p in points}
    place = [trials.c[name] for name in POINT_COLUMNS]
    query = (
        select(*place, func.min(trials.c.median_us))
        .where(trials.c.run_id == run_id, trials.c.median_us.is_not(None))
        .where(trials.c.backend == TRITON)
        .where(tuple_(*place).in_(list(wanted)))
        .group_by(*place)
    )
    best = {(*at,): time_us for *at, time_us in connection.execute(query)}
    return {name: best[at] for at, name in wanted.items() if at in best}

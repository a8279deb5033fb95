"""Store the workers' rows, and read figures of the service: for monitoring, and of runs' times."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    and_,
    delete,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.pool import QueuePool

from tuner.errors import UnknownWorker, did_you_mean
from tuner.jobs.job import HELD, Job, JobState, Lease, UnreadableRequest
from tuner.jobs.workers import (
    ALIVE,
    FORGET_AFTER,
    Reasons,
    WorkerInfo,
    WorkerState,
    WorkerStatus,
    drain_state,
    read_info,
)
from tuner.problems.points import Problem
from tuner.problems.registry import parse_problem
from tuner.problems.results import MeasureKind, RunState
from tuner.store.database import Database, Queries, check_head, insert_into, time_of
from tuner.store.job_rows import is_leased
from tuner.store.rows import is_readable, storable
from tuner.store.tables import IS_QUEUED, environments, jobs, nightly_runs, problems, runs, workers
from tuner.tuning.request import Effort, start_s, typical_gpu_s

_OWN_JOB = (
    select(jobs.c.id)
    .where(jobs.c.state.in_([state.value for state in HELD]), jobs.c.owner == workers.c.id)
    .limit(1)
    .correlate(workers)
    .scalar_subquery()
    .label("job_id")
)


class WorkerStore(Queries):
    """Stores workers. Methods are single transactions; a failing database raises UnusableStore."""

    def beat(self, info: WorkerInfo) -> WorkerState:
        """Say that a worker lives and which jobs it can do. Returns its state as stored.

        It is `ACTIVE` at first, or has the state of a process of its name that died. An operator
        may have changed it since.
        """
        with self._write() as connection:
            now = self._now(connection)
            seen: dict[str, Any] = {"engines": info.engines, "seen_at": now}
            again = update(workers).where(workers.c.id == info.id).values(**seen)
            if state := connection.execute(again.returning(workers.c.state)).scalar():
                return WorkerState(state)
            row = {**asdict(info), **seen, "started_at": now, **_inherited(connection, info)}
            connection.execute(insert_into(connection, workers).values(row))
            gone = and_(workers.c.name == info.name, workers.c.id != info.id, ~is_alive(now))
            connection.execute(delete(workers).where(gone))
            return WorkerState(row["state"])

    def stopped(self, worker_id: str) -> None:
        """Say that a worker has ended."""
        with self._write() as connection:
            _set(connection, worker_id, state=WorkerState.STOPPED.value)

    def set_aside(self, worker_id: str, reason: str) -> None:
        """Let a worker take no more jobs until an operator resumes it."""
        with self._write() as connection:
            set_worker_aside(connection, worker_id, reason)

    def list(self, *, living: bool = False) -> Sequence[WorkerStatus]:
        """Return all workers that are not forgotten, or the living workers, by host and name."""
        query = select(workers, _OWN_JOB)
        with self._read() as connection:
            now = self._now(connection)
            if living:
                query = query.where(is_alive(now))
            query = query.order_by(workers.c.host, workers.c.name, workers.c.started_at)
            return [_read(row, now) for row in connection.execute(query).mappings()]

    def reasons(self) -> Reasons:
        """Return the object that says why jobs do not go on, by the store's clock."""
        workers = self.list()
        with self._read() as connection:
            return Reasons(workers, self._now(connection))

    def drain(self, name: str) -> Sequence[str]:
        """Let workers take no more jobs, and return their ids. They finish their present jobs.

        `name` is a worker's name or id, or a host for all of its workers. Raises UnknownWorker.
        """
        return self._change(name, drain=True)

    def resume(self, name: str) -> Sequence[str]:
        """Let workers take jobs again that were drained or set aside. Otherwise as `drain`."""
        return self._change(name, drain=False, state=WorkerState.ACTIVE.value, reason="")

    def forget(self, older_than: timedelta = FORGET_AFTER) -> int:
        """Delete the workers that were not seen for so long, and return their number."""
        with self._write() as connection:
            old = workers.c.seen_at < self._now(connection) - older_than
            return connection.execute(delete(workers).where(old)).rowcount

    def _change(self, name: str, **values: object) -> Sequence[str]:
        called = or_(workers.c.id == name, workers.c.name == name, workers.c.host == name)
        with self._write() as connection:
            alive = is_alive(self._now(connection))
            change = update(workers).where(called, alive).values(**values)
            changed = connection.execute(change.returning(workers.c.id)).scalars().all()
            if not changed:
                names = connection.execute(select(workers.c.name).where(alive)).scalars()
                near = did_you_mean(name, sorted(set(names)))
                raise UnknownWorker(
                    f"no living worker or host is called {name!r}{near}",
                    cli="; `tuner admin workers` lists them",
                    api="; GET /v1/workers lists them",
                    page=": the page Workers lists them",
                )
        return sorted(changed)


def _inherited(connection: Connection, info: WorkerInfo) -> dict[str, Any]:
    """Return the state that a new process takes from the last process of its name, unless that was
    stopped.
    """
    columns = workers.c.state, workers.c.reason, workers.c.drain
    last = select(*columns).where(workers.c.name == info.name).order_by(workers.c.started_at.desc())
    row = connection.execute(last.limit(1)).mappings().one_or_none()
    if row is None or row["state"] == WorkerState.STOPPED.value:
        return {"state": WorkerState.ACTIVE.value, "reason": "", "drain": False}
    return dict(row)


def set_worker_aside(connection: Connection, worker_id: str, reason: str) -> None:
    """Set a worker aside as `WorkerStore.set_aside` does, in the caller's transaction."""
    values = {"state": WorkerState.SET_ASIDE.value, "reason": storable(reason)}
    _set(connection, worker_id, **values)


def may_claim(connection: Connection, worker_id: str) -> bool:
    """Say whether a worker may take a job. A worker without a row may."""
    query = select(workers.c.state, workers.c.drain).where(workers.c.id == worker_id)
    row = connection.execute(query).one_or_none()
    return row is None or (row.state != WorkerState.SET_ASIDE.value and not row.drain)


def is_alive(now: datetime) -> ColumnElement[bool]:
    """Return the condition that a worker was seen lately.

    A worker that was seen in the future was seen before the clock went back.
    """
    return and_(
        workers.c.seen_at > now - ALIVE,
        workers.c.seen_at < now + ALIVE,
        workers.c.state != WorkerState.STOPPED.value,
    )


def _set(connection: Connection, worker_id: str, **values: object) -> None:
    connection.execute(update(workers).where(workers.c.id == worker_id).values(**values))


def _read(row: RowMapping, now: datetime) -> WorkerStatus:
    state = WorkerState(row["state"])
    return WorkerStatus(
        info=read_info(row),
        state=state,
        reason=row["reason"],
        drain=row["drain"],
        started_at=row["started_at"],
        seen_at=row["seen_at"],
        alive=state is not WorkerState.STOPPED and abs(now - row["seen_at"]) < ALIVE,
        job_id=row["job_id"],
    )


KNOWN = timedelta(days=7)  # a device whose worker was seen within this is still shown, with zeros
FINISHED = tuple(state for state in JobState if state.finished)


@dataclass(frozen=True)
class QueueLength:
    """The number of queued jobs of a device that need its GPU, or that need none."""

    device: str
    needs_gpu: bool
    jobs: int
    oldest_s: float  # since the oldest job was posted, retried or given back


@dataclass(frozen=True)
class LiveWorker:
    """A worker that was seen within `ALIVE`."""

    device: str  # of its GPU; "" without one
    devices: tuple[str, ...] | None  # whose predictions and replays it does; None: all devices
    engines: tuple[str, ...]  # sglang==0.5.16
    state: str  # of an active worker that an operator drains: draining, or drained

    def serves(self, device: str, *, needs_gpu: bool) -> bool:
        """Say whether it now takes such jobs, if it has their engine."""
        if self.state != "active":
            return False
        if needs_gpu:
            return self.device == device
        return self.devices is None or device in self.devices


@dataclass(frozen=True)
class NewestNights:
    """The newest round that was begun, and the newest round that was finished."""

    started_at: datetime | None
    finished_at: datetime | None
    summary: Mapping[str, Any]  # of the finished round


@dataclass(frozen=True)
class StoreFigures:
    """The contents of the store at a moment."""

    devices: frozenset[str]  # that have had jobs or lately had workers
    queues: Sequence[QueueLength]  # without empty queues
    held: Mapping[tuple[JobState, str], int]  # jobs that a worker has, by state and device
    overdue: int  # of these, jobs whose lease has run out
    workers: Sequence[LiveWorker]
    nights: NewestNights


@dataclass(frozen=True)
class PoolUse:
    """The connections of a pool."""

    size: int  # that it keeps open
    idle: int
    used: int


@dataclass(frozen=True)
class JobTimes:
    """The course of a job under a lease, by the clock of the database's host."""

    state: JobState
    queued_at: datetime
    started_at: datetime | None  # its first claim since then
    finished_at: datetime | None


class Figures(Queries):
    """Reads figures. Every method is a transaction, and raises UnusableStore."""

    def read(self) -> StoreFigures:
        """Return the present figures. Raises UnusableStore for another version's schema too."""
        with self._read() as connection:
            check_head(connection)
            now = time_of(connection, None)
            held, overdue = _held(connection, now)
            return StoreFigures(
                devices=_devices(connection, now),
                queues=_queues(connection, now),
                held=held,
                overdue=overdue,
                workers=_workers(connection, now),
                nights=_nights(connection),
            )

    def finished(self) -> dict[JobState, int]:
        """Return the number of jobs in each final state, reading an index entry for
        each such job.
        """
        ended = jobs.c.state.in_([state.value for state in FINISHED])
        query = select(jobs.c.state, func.count()).where(ended).group_by(jobs.c.state)
        with self._read() as connection:
            found = {JobState(state): count for state, count in connection.execute(query)}
        return {state: found.get(state, 0) for state in FINISHED}

    def job_times(self, lease: Lease) -> JobTimes | None:
        """Return the times of the lease's job; None once it has another lease."""
        columns = jobs.c.state, jobs.c.available_at, jobs.c.started_at, jobs.c.finished_at
        query = select(*columns).where(is_leased(lease))
        with self._read() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            return None
        state, queued, started, finished = row
        return JobTimes(JobState(state), queued, started, finished)

    def pool(self) -> PoolUse | None:
        """Return the use of this database's pool; None if connections are not pooled."""
        pool = self.database.engine.pool
        if not isinstance(pool, QueuePool):
            return None
        return PoolUse(pool.size(), pool.checkedin(), pool.checkedout())


def _devices(connection: Connection, now: datetime) -> frozenset[str]:
    # One probe of an index for each device; DISTINCT would read an entry for each job.
    first = select(func.min(jobs.c.device).label("device")).cte("seen", recursive=True)
    following = select(func.min(jobs.c.device)).where(jobs.c.device > first.c.device)
    seen = first.union_all(select(following.scalar_subquery()).where(first.c.device.is_not(None)))
    with_jobs = select(seen.c.device).where(seen.c.device.is_not(None))
    with_workers = select(workers.c.device).where(workers.c.seen_at > now - KNOWN).distinct()
    found = connection.execute(with_jobs.union(with_workers)).scalars()
    return frozenset(device for device in found if device)


def _queues(connection: Connection, now: datetime) -> list[QueueLength]:
    kind = jobs.c.device, jobs.c.needs_gpu
    query = select(*kind, func.count(), func.min(jobs.c.available_at)).where(IS_QUEUED)
    return [
        QueueLength(device, needs_gpu, count, max((now - oldest).total_seconds(), 0.0))
        for device, needs_gpu, count, oldest in connection.execute(query.group_by(*kind))
    ]


def _held(connection: Connection, now: datetime) -> tuple[dict[tuple[JobState, str], int], int]:
    overdue = func.count().filter(jobs.c.lease_expires_at < now)
    query = (
        select(jobs.c.state, jobs.c.device, func.count(), overdue)
        .where(jobs.c.state.in_([state.value for state in HELD]))
        .group_by(jobs.c.state, jobs.c.device)
    )
    rows = connection.execute(query).all()
    return {(JobState(row[0]), row[1]): row[2] for row in rows}, sum(row[3] for row in rows)


def _workers(connection: Connection, now: datetime) -> list[LiveWorker]:
    columns = workers.c.device, workers.c.devices, workers.c.engines, workers.c.state
    query = select(*columns, workers.c.drain, _OWN_JOB).where(is_alive(now))
    return [
        LiveWorker(
            device,
            None if devices is None else tuple(devices),
            tuple(engines),
            _doing(state, drain, job_id),
        )
        for device, devices, engines, state, drain, job_id in connection.execute(query)
    ]


def _doing(state: str, drain: bool, job_id: str | None) -> str:
    if state != WorkerState.ACTIVE.value or not drain:
        return state
    return drain_state(job_id)


def _nights(connection: Connection) -> NewestNights:
    columns = nightly_runs.c.started_at, nightly_runs.c.finished_at, nightly_runs.c.summary
    newest = select(*columns).order_by(nightly_runs.c.started_at.desc()).limit(1)
    begun = connection.execute(newest).one_or_none()
    ended = connection.execute(newest.where(columns[1].is_not(None))).one_or_none()
    return NewestNights(
        started_at=begun and begun[0],
        finished_at=ended and ended[1],
        summary=(ended and ended[2]) or {},
    )


_NEWEST = 20  # runs that are looked at
_KEEP_S = 60.0  # a service need not ask again for each submission


class Estimates(Queries):
    """Reads finished runs. Raises UnusableStore."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._known: dict[tuple[str, str, Effort], tuple[float, float | None]] = {}

    def of(self, job: Job) -> float | None:
        """Return `gpu_s`, to a tenth, for a job; None for a job that needs no GPU or has ended."""
        asked = job.request
        if not asked.needs_gpu or job.state.finished or isinstance(asked, UnreadableRequest):
            return None
        found = self.gpu_s(asked.problem, asked.device, asked.effort, len(asked.points))
        return found and round(found, 1)

    def gpu_s(self, problem: Problem, device: str, effort: Effort, points: int) -> float | None:
        """Estimate the seconds that a run over so many points will need a GPU; None if nothing is
        known.

        The newest runs of the family on the device with the same effort give the estimate. Without
        such runs, the number of tries gives it, with the time of a try on an H200.
        """
        kind = problem.family, device, effort
        until, a_point = self._known.get(kind, (0.0, None))
        if time.monotonic() >= until:
            a_point = self._seconds_a_point(*kind)
            self._known[kind] = time.monotonic() + _KEEP_S, a_point
        if a_point is None:
            return typical_gpu_s(problem, points, effort)
        return start_s(problem) + points * a_point

    def _seconds_a_point(self, family: str, device: str, effort: Effort) -> float | None:
        query = (
            select(problems.c.spec, runs.c.points, runs.c.totals)
            .join(problems, runs.c.problem_id == problems.c.id)
            .join(environments, runs.c.environment_id == environments.c.id)
            .where(
                problems.c.family == family,
                environments.c.device == device,
                runs.c.measure == MeasureKind.GPU.value,
                runs.c.effort == effort.value,
                runs.c.state == RunState.DONE.value,
            )
            .order_by(runs.c.id.desc())
            .limit(_NEWEST)
        )
        with self._read() as connection:
            found = connection.execute(query).all()
        taken = [
            max(0.0, gpu_s - start_s(parse_problem(spec))) / len(tuned)
            for spec, tuned, totals in found
            if tuned and (gpu_s := (totals or {}).get("extra", {}).get("gpu_s")) is not None
            if is_readable(spec)
        ]
        return median(taken) if taken else None

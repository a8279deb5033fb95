"""The workers' rows: what each can do, whether it lives, and whether it may take jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    and_,
    delete,
    or_,
    select,
    update,
)

from tuner.errors import UnknownWorker, did_you_mean
from tuner.jobs.job import HELD
from tuner.jobs.workers import ALIVE, FORGET_AFTER, WorkerInfo, WorkerState, WorkerStatus
from tuner.store.database import Queries, insert_into
from tuner.store.rows import storable
from tuner.store.tables import jobs, workers

_HELD = [state.value for state in HELD]


class WorkerStore(Queries):
    """Stores workers. Methods are single transactions; a failing database raises UnusableStore."""

    def beat(self, info: WorkerInfo) -> WorkerState:
        """Say that a worker lives and what it can do. Returns its state as stored.

        It is `ACTIVE` at first. An operator may have changed it since.
        """
        with self._write() as connection:
            now = self._now(connection)
            seen: dict[str, Any] = {"engines": list(info.engines), "seen_at": now}
            insert = insert_into(connection, workers).values(
                id=info.id,
                name=info.name,
                host=info.host,
                gpu=info.gpu,
                device=info.device,
                devices=None if info.devices is None else list(info.devices),
                packages=dict(info.packages),
                state=WorkerState.ACTIVE.value,
                reason="",
                drain=False,
                started_at=now,
                **seen,
            )
            upsert = insert.on_conflict_do_update(index_elements=[workers.c.id], set_=seen)
            return WorkerState(connection.execute(upsert.returning(workers.c.state)).scalar_one())

    def stopped(self, worker_id: str) -> None:
        """Say that a worker has ended."""
        with self._write() as connection:
            _set(connection, worker_id, state=WorkerState.STOPPED.value)

    def set_aside(self, worker_id: str, reason: str) -> None:
        """Let a worker take no more jobs until an operator resumes it."""
        with self._write() as connection:
            set_worker_aside(connection, worker_id, reason)

    def list(self, *, living: bool = False) -> Sequence[WorkerStatus]:
        """All workers that are not forgotten, or the living ones, by host and name."""
        held = select(jobs.c.id).where(jobs.c.state.in_(_HELD)).limit(1)
        own = held.where(jobs.c.owner == workers.c.id).correlate(workers).scalar_subquery()
        query = select(workers, own.label("job_id"))
        with self._read() as connection:
            now = self._now(connection)
            if living:
                query = query.where(is_alive(now))
            query = query.order_by(workers.c.host, workers.c.name, workers.c.started_at)
            return [_read(row, now) for row in connection.execute(query).mappings()]

    def drain(self, name: str) -> Sequence[str]:
        """Let workers take no more jobs, and return their ids. They finish the jobs that they have.

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
                    cli="; `tuner workers` lists them",
                    api="; GET /v1/workers lists them",
                    page=": the page Workers lists them",
                )
        return sorted(changed)


def set_worker_aside(connection: Connection, worker_id: str, reason: str) -> None:
    """As `WorkerStore.set_aside`, in the caller's transaction."""
    values = {"state": WorkerState.SET_ASIDE.value, "reason": storable(reason)}
    _set(connection, worker_id, **values)


def may_claim(connection: Connection, worker_id: str) -> bool:
    """Whether a worker may take a job. One without a row may."""
    query = select(workers.c.state, workers.c.drain).where(workers.c.id == worker_id)
    row = connection.execute(query).one_or_none()
    return row is None or (row.state != WorkerState.SET_ASIDE.value and not row.drain)


def is_alive(now: datetime) -> ColumnElement[bool]:
    """A worker that was seen in the future was seen before the clock went back."""
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
        info=WorkerInfo(
            id=row["id"],
            name=row["name"],
            host=row["host"],
            gpu=row["gpu"],
            device=row["device"],
            devices=None if row["devices"] is None else tuple(row["devices"]),
            engines=tuple(row["engines"]),
            packages=row["packages"],
        ),
        state=state,
        reason=row["reason"],
        drain=row["drain"],
        started_at=row["started_at"],
        seen_at=row["seen_at"],
        alive=state is not WorkerState.STOPPED and abs(now - row["seen_at"]) < ALIVE,
        job_id=row["job_id"],
    )

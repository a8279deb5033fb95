"""GPUs that a host's idle workers lend to an urgent job of one of them.

A worker whose GPU is lent claims nothing. The borrower gives all back when it claims again, because
the processes of its job have ended by then. A loan also ends when its borrower is no longer alive.
GPUs are lent, not workers, so a worker that was restarted meanwhile does not use a lent GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, delete, exists, or_, select

from tuner.jobs.job import JobFilter, Priority
from tuner.jobs.workers import WorkerState
from tuner.store.claims import candidates
from tuner.store.database import insert_into
from tuner.store.job_tables import gpu_loans, jobs, workers
from tuner.store.lease_rows import IS_HELD
from tuner.store.locks import wait_for_transaction_lock
from tuner.store.workers import is_alive


def give_back_gpus(connection: Connection, borrower: str) -> None:
    """End all loans to a worker, which uses no GPU now."""
    connection.execute(delete(gpu_loans).where(gpu_loans.c.borrower == borrower))


def is_lent(connection: Connection, worker_id: str, now: datetime) -> bool:
    """Whether a worker's GPU is lent. The host's other workers wait here until the transaction
    ends, so that no GPU is lent and used at once.
    """
    mine = _row(connection, worker_id)
    if mine is None or not mine["gpu"]:
        return False
    wait_for_transaction_lock(connection, f"the GPUs of {mine['host']}")
    query = select(exists(_lent(now).where(gpu_loans.c.gpu == mine["gpu"])))
    return bool(connection.execute(query).scalar_one())


def borrow_gpus(
    connection: Connection,
    filters: Sequence[JobFilter],
    job: RowMapping,
    borrower: str,
    now: datetime,
) -> tuple[str, ...]:
    """Lend a job, which a worker has just claimed, the GPUs that may be lent. Returns their UUIDs.

    An urgent job that needs a GPU gets those of the same type on the same host that nobody uses.
    None is lent while another urgent job waits that the worker's `filters` let through: the idle
    workers are about to claim it.
    """
    mine = _row(connection, borrower)
    urgent = job["needs_gpu"] and job["priority"] == int(Priority.URGENT)
    if mine is None or not urgent or _another_waits(connection, filters, now):
        return ()
    found = tuple(connection.execute(_idle_gpus(mine, now)).scalars())
    for gpu in found:
        insert = insert_into(connection, gpu_loans).values(gpu=gpu, borrower=borrower)
        set_ = {"borrower": borrower}  # in place of a borrower that is no longer alive
        connection.execute(
            insert.on_conflict_do_update(index_elements=[gpu_loans.c.gpu], set_=set_)
        )
    return found


def _idle_gpus(mine: RowMapping, now: datetime) -> Select[Any]:
    """The GPUs of a worker's host and type, but its own, that workers who may claim do not use."""
    holds = exists(select(jobs.c.id).where(jobs.c.owner == workers.c.id, IS_HELD))
    kept = workers.c.drain | (workers.c.state == WorkerState.SET_ASIDE.value)
    alive = is_alive(now)
    here = (workers.c.host == mine["host"], workers.c.device == mine["device"])
    # A worker that was restarted has several rows, and a job may still be with an earlier one.
    not_free = select(workers.c.gpu).where(*here, or_(holds, alive & kept))
    return (
        select(workers.c.gpu)
        .where(*here, alive, workers.c.gpu != mine["gpu"])
        .where(workers.c.gpu.not_in(not_free), workers.c.gpu.not_in(_lent(now)))
        .distinct()
        .order_by(workers.c.gpu)
    )


def _lent(now: datetime) -> Select[Any]:
    borrower = workers.alias("borrower")
    return select(gpu_loans.c.gpu).join(
        borrower, (borrower.c.id == gpu_loans.c.borrower) & is_alive(now, borrower)
    )


def _another_waits(connection: Connection, filters: Sequence[JobFilter], now: datetime) -> bool:
    urgent = jobs.c.priority == int(Priority.URGENT)
    queries = [candidates(one, now, urgent) for one in filters if one.needs_gpu]
    return any(connection.execute(query).one_or_none() for query in queries)


def _row(connection: Connection, worker_id: str) -> RowMapping | None:
    query = select(workers.c.host, workers.c.gpu, workers.c.device)
    return connection.execute(query.where(workers.c.id == worker_id)).mappings().one_or_none()

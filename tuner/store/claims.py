"""Which queued job a worker gets: the most urgent, then the one whose client waits longest."""

from __future__ import annotations

from collections.abc import Sequence
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
    update,
)

from tuner.jobs.job import JobFilter, Priority
from tuner.store.database import insert_into
from tuner.store.job_tables import IS_QUEUED, client_turns, jobs

# No job is told to wait for longer. A job that seems to was told so before the clock went back.
LONGEST_DELAY = timedelta(minutes=5)
AGED = timedelta(hours=1)
_AGED_AT_ONCE = 1000  # rows that are changed in one transaction


def next_queued(
    connection: Connection, filters: Sequence[JobFilter], now: datetime
) -> RowMapping | None:
    """The row of the next job of the first filter that has one, locked."""
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


def age(connection: Connection, now: datetime) -> int:
    """Make jobs urgent that have waited for `AGED`. Returns their number."""
    old = (
        select(jobs.c.id)
        .where(IS_QUEUED, jobs.c.priority > int(Priority.URGENT), jobs.c.created_at < now - AGED)
        .limit(_AGED_AT_ONCE)
        .with_for_update(skip_locked=True)
    )
    change = update(jobs).where(jobs.c.id.in_(old)).values(priority=int(Priority.URGENT))
    return connection.execute(change).rowcount


def due(now: datetime) -> ColumnElement[bool]:
    """Whether a queued job may be claimed now."""
    return or_(jobs.c.available_at <= now, jobs.c.available_at > now + LONGEST_DELAY)


def _clients_in_turn(connection: Connection, wanted: JobFilter, now: datetime) -> list[str]:
    """The clients with jobs for a filter: urgent jobs first, then who was served longest ago."""
    clients = _queued_clients(wanted.needs_gpu)
    first = (
        candidates(wanted, now, jobs.c.client == clients.c.client)
        .with_only_columns(jobs.c.priority)
        .correlate(clients)
        .scalar_subquery()
    )
    query = (
        select(clients.c.client, first.label("priority"), client_turns.c.turn)
        .outerjoin(client_turns, client_turns.c.client == clients.c.client)
        .where(clients.c.client.is_not(None))
    )
    found: list[Any] = [row for row in connection.execute(query).all() if row.priority is not None]
    in_turn = sorted(found, key=lambda row: (row.priority, row.turn or 0, row.client))
    return [row.client for row in in_turn]


def _queued_clients(needs_gpu: bool) -> CTE:
    """Each client with queued jobs once, by one step along the index for each client.

    DISTINCT would read the entries of all queued jobs.
    """
    mine = and_(IS_QUEUED, jobs.c.needs_gpu == needs_gpu)
    walk = select(func.min(jobs.c.client).label("client")).where(mine).cte("walk", recursive=True)
    further = select(func.min(jobs.c.client)).where(mine, jobs.c.client > walk.c.client)
    return walk.union_all(
        select(further.correlate(walk).scalar_subquery()).where(walk.c.client.is_not(None))
    )


def candidates(wanted: JobFilter, now: datetime, mine: ColumnElement[bool]) -> Select[Any]:
    """The row of the first job that a filter lets through, of those for which `mine` is true."""
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

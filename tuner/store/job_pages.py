"""The statement behind a page of the list of jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, select, tuple_, union_all

from tuner.jobs.job import JobState
from tuner.jobs.listing import JobOrder, JobQuery
from tuner.store.job_tables import jobs


def select_page(query: JobQuery, after: tuple[datetime, str] | None, limit: int) -> Select[Any]:
    """At most `limit` jobs in the query's order, from behind the place `after`.

    Each state's part is a walk along an index that stops after `limit` rows. With `state IN (...)`
    PostgreSQL 15 would read and sort all jobs in those states, or walk over all others.
    """
    conditions = _conditions(query, after)
    if not query.states or query.states == set(JobState):
        return _in_order(select(jobs).where(*conditions), query.order, limit)
    states = sorted(state.value for state in query.states)
    if len(states) == 1:
        return _in_order(
            select(jobs).where(*conditions, jobs.c.state == states[0]), query.order, limit
        )
    # The walks give places alone: SQLAlchemy takes milliseconds for unions of whole rows.
    place = select(jobs.c.created_at, jobs.c.id).where(*conditions)
    walks = [_in_order(place.where(jobs.c.state == one), query.order, limit) for one in states]
    # SQLite takes a LIMIT within a union only in a subquery.
    places = union_all(*(select(walk.subquery()) for walk in walks)).subquery()
    first = _in_order(select(places), query.order, limit).subquery()
    return _in_order(select(jobs).join(first, jobs.c.id == first.c.id), query.order, limit)


def _conditions(query: JobQuery, after: tuple[datetime, str] | None) -> list[ColumnElement[bool]]:
    place = tuple_(jobs.c.created_at, jobs.c.id)
    conditions: list[ColumnElement[bool]] = []
    for column, value in (
        (jobs.c.device, query.device),
        (jobs.c.model, query.model),
        (jobs.c.client, query.client),
    ):
        if value is not None:
            conditions.append(column == value)
    if query.created_after is not None:
        conditions.append(jobs.c.created_at > query.created_after)
    if query.created_before is not None:
        conditions.append(jobs.c.created_at < query.created_before)
    if after is not None:
        conditions.append(place < after if query.order is JobOrder.NEWEST else place > after)
    return conditions


def _in_order(rows: Select[Any], order: JobOrder, limit: int) -> Select[Any]:
    columns = rows.selected_columns
    place = (columns["created_at"], columns["id"])
    down = order is JobOrder.NEWEST
    return rows.order_by(*(column.desc() if down else column for column in place)).limit(limit)

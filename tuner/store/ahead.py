"""Compile work in the queue: jobs that compile for other jobs, which wait for them for a while."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, Engine, and_, or_, select, update

from tuner.jobs.ahead import compile_request
from tuner.jobs.job import UNFINISHED, Cost, JobState, Lease, Priority, Submitted
from tuner.problems.results import Totals
from tuner.store.database import Clock, Database, time_of
from tuner.store.job_rows import append_event, cost_columns, move, update_job
from tuner.store.job_tables import IS_QUEUED, jobs
from tuner.store.key_text import AHEAD
from tuner.store.lease_rows import leased_row
from tuner.store.submissions import Submission, find_or_add

# The longest time that a job waits for its compile work, if the CPU workers are slow or gone.
MOST_WAIT = {Priority.URGENT: timedelta(minutes=1), Priority.NORMAL: timedelta(minutes=10)}


def precede(
    connection: Connection,
    wanted: Sequence[Submission],
    answers: Sequence[Submitted],
    clock: Clock | None,
    fresh: timedelta,
    trace: str,
) -> Sequence[Submitted]:
    """Add compile work for the new jobs that are to have some, and let them wait for it."""
    new = [at for at, one in enumerate(wanted) if one.ahead and answers[at].created]
    if not new:
        return answers
    work = [replace(wanted[at], request=compile_request(wanted[at].request)) for at in new]
    _, found = find_or_add(connection, work, AHEAD, clock, fresh, trace)
    preceded = dict(enumerate(answers))
    for at, compiling in zip(new, found, strict=True):
        answer, before = answers[at], compiling.job
        if not before.state.finished:
            update_job(connection, answer.job.id, after_id=before.id)
            job = replace(answer.job, after_id=before.id)
            preceded[at] = replace(answer, job=job, ahead=before if compiling.created else None)
    return list(preceded.values())


def waits_no_more(now: datetime) -> ColumnElement[bool]:
    """Whether a queued job need not wait for compile work: there is none, enough is done, all of
    it has ended in whatever way, or it took too long.
    """
    before = jobs.alias("before")
    unfinished = before.c.state.in_([state.value for state in UNFINISHED])
    waiting = select(before.c.id).where(before.c.id == jobs.c.after_id, unfinished)
    return or_(
        jobs.c.after_id.is_(None),
        and_(jobs.c.priority == int(Priority.URGENT), _older(now, Priority.URGENT)),
        _older(now, Priority.NORMAL),
        ~waiting.correlate(jobs).exists(),
    )


def _older(now: datetime, priority: Priority) -> ColumnElement[bool]:
    return jobs.c.created_at < now - MOST_WAIT[priority]


class AheadStore(Database):
    """What a worker writes of compile work, under its lease.

    Every method is one transaction, and raises StaleLease once the lease is lost.
    """

    def __init__(self, engine: Engine, lease: Lease, clock: Clock | None = None) -> None:
        super().__init__(engine)
        self._lease = lease
        self._clock = clock

    def begin(self) -> None:
        """The job is RUNNING."""
        with self._write() as connection:
            job_id, now = self._mine(connection)
            move(connection, job_id, JobState.RUNNING, now)
            append_event(connection, job_id, now, JobState.RUNNING.value, {})

    def add(self, tried: int, *, enough: bool) -> None:
        """So many candidates are compiled; with `enough`, the jobs that wait for it may begin."""
        with self._write() as connection:
            job_id, now = self._mine(connection)
            data = {"tried": tried, "enough": enough}
            append_event(connection, job_id, now, "compiled", data, trial_count=tried)
            if enough:
                mine = jobs.c.after_id == job_id
                connection.execute(update(jobs).where(IS_QUEUED, mine).values(after_id=None))

    def finish(self, totals: Totals) -> None:
        """The job is DONE."""
        with self._write() as connection:
            job_id, now = self._mine(connection)
            cost = cost_columns(Cost.of(totals))
            move(connection, job_id, JobState.DONE, now, error="", **cost)
            data = {"totals": asdict(totals)}
            append_event(connection, job_id, now, JobState.DONE.value, data)

    def _mine(self, connection: Connection) -> tuple[str, datetime]:
        """The job, whose row is then locked, and the time."""
        return leased_row(connection, self._lease)["id"], time_of(connection, self._clock)

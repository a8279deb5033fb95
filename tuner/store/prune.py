"""Delete what is old and what no result needs: the one place where trials are ever deleted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Column, Connection, Select, delete, select

from tuner.jobs.job import UNFINISHED
from tuner.store.database import Queries
from tuner.store.tables import (
    idempotency_keys,
    job_events,
    jobs,
    nightly_runs,
    runs,
    trials,
    winners,
)

_JOBS_AT_ONCE = 200
_RUNS_AT_ONCE = 5  # each has thousands of trials, and others wait for SQLite's one writer


@dataclass(frozen=True)
class Pruned:
    """How much was deleted."""

    jobs: int
    runs: int
    trials: int
    nights: int


class Pruning(Queries):
    """Deletes old rows, a few in each transaction, so that the service goes on meanwhile."""

    def prune(self, older_than: timedelta) -> Pruned:
        """Delete jobs that ended so long ago, nights, and runs with their trials.

        A run stays as long as a winner is of it or a job has it. Raises UnusableStore.
        """
        with self._read() as connection:
            before = self._now(connection) - older_than
        ended = jobs.c.state.not_in([state.value for state in UNFINISHED])
        old_jobs = select(jobs.c.id).where(ended, jobs.c.finished_at < before)
        of_winners = select(winners.c.run_id)
        of_jobs = select(jobs.c.run_id).where(jobs.c.run_id.is_not(None))
        old_runs = select(runs.c.id).where(
            runs.c.updated_at < before, runs.c.id.not_in(of_winners), runs.c.id.not_in(of_jobs)
        )
        jobs_gone, _ = self._delete(old_jobs.limit(_JOBS_AT_ONCE), jobs.c.id, _OF_JOBS)
        runs_gone, trials_gone = self._delete(
            old_runs.limit(_RUNS_AT_ONCE), runs.c.id, (trials.c.run_id,)
        )
        with self._write() as connection:
            old_nights = delete(nightly_runs).where(nightly_runs.c.started_at < before)
            nights_gone = connection.execute(old_nights).rowcount
        return Pruned(jobs_gone, runs_gone, trials_gone, nights_gone)

    def _delete(
        self, some: Select[Any], column: Column[Any], belonging: tuple[Column[Any], ...]
    ) -> tuple[int, int]:
        """Delete the rows of a query, again until there are none, and first what belongs to them.

        Returns the numbers of both.
        """
        rows = others = 0
        while True:
            with self._write() as connection:
                ids = connection.execute(some.with_for_update(of=column.table)).scalars().all()
                if not ids:
                    return rows, others
                others += sum(_delete_with(connection, one, ids) for one in belonging)
                rows += _delete_with(connection, column, ids)


_OF_JOBS = (job_events.c.job_id, idempotency_keys.c.job_id)


def _delete_with(connection: Connection, column: Column[Any], ids: Any) -> int:  # noqa: ANN401
    return connection.execute(delete(column.table).where(column.in_(ids))).rowcount

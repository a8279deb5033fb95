"""Delete old rows that no result needs: the only place where trials are ever deleted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import Column, Select, delete, select

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


class Pruning(Queries):
    """Deletes old rows, a few in each transaction, so that the service goes on meanwhile."""

    def prune(self, older_than: timedelta) -> dict[str, int]:
        """Delete jobs that ended so long ago, nights, and runs with their trials; return how many.

        A run stays as long as a winner is from it or a job has it. Raises UnusableStore.
        """
        before = self._now() - older_than
        ended = jobs.c.state.not_in([state.value for state in UNFINISHED])
        old_jobs = select(jobs.c.id).where(ended, jobs.c.finished_at < before)
        of_jobs = select(jobs.c.run_id).where(jobs.c.run_id.is_not(None))
        old_runs = select(runs.c.id).where(
            runs.c.updated_at < before,
            runs.c.id.not_in(select(winners.c.run_id)),
            runs.c.id.not_in(of_jobs),
        )
        old_nights = select(nightly_runs.c.id).where(nightly_runs.c.started_at < before)
        of_job = job_events.c.job_id, idempotency_keys.c.job_id
        gone = self._delete(old_jobs.limit(_JOBS_AT_ONCE), *of_job, jobs.c.id)
        gone |= self._delete(old_runs.limit(_RUNS_AT_ONCE), trials.c.run_id, runs.c.id)
        gone |= self._delete(old_nights.limit(_JOBS_AT_ONCE), nightly_runs.c.id)
        return {kind: gone.get(table.name, 0) for kind, table in _COUNTED.items()}

    def _delete(self, some: Select[Any], *columns: Column[Any]) -> dict[str, int]:
        """Delete the rows whose columns have the ids of a query, again until it has none.

        The last column holds the ids. Returns the numbers of rows by table.
        """
        gone: dict[str, int] = {}
        while True:
            with self._write() as connection:
                ids = connection.execute(some.with_for_update()).scalars().all()
                if not ids:
                    return gone
                for column in columns:
                    rows = connection.execute(delete(column.table).where(column.in_(ids))).rowcount
                    gone[column.table.name] = gone.get(column.table.name, 0) + rows


_COUNTED = {"jobs": jobs, "runs": runs, "trials": trials, "nights": nightly_runs}

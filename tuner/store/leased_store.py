"""The store as the worker of one job sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from sqlalchemy import Connection, Engine, func, select, tuple_

from tuner.errors import RunAlreadyActive
from tuner.jobs.job import PLANNED, Cost, JobState, Lease
from tuner.problems.points import TRITON, Candidate, Config, Point
from tuner.problems.records import Outlook, Run, RunKey
from tuner.problems.results import Entry, Totals, Trial
from tuner.store.database import Clock, time_of
from tuner.store.job_rows import append_event, cost_columns, move
from tuner.store.job_tables import jobs
from tuner.store.lease_rows import leased_row
from tuner.store.store import Store
from tuner.store.tables import POINT_COLUMNS, trials


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
        self._incumbents: dict[Candidate, str] = {}  # their names

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with super()._write() as connection:
            leased_row(connection, self._lease)
            yield connection

    def expect(self, run: Run, outlook: Outlook) -> None:
        """Note what the run will try, as an event of the job."""
        named = {
            Candidate(point, config): name
            for point, by_name in outlook.incumbents.items()
            for name, config in by_name.items()
        }
        data = {
            "to_try": outlook.to_try,
            "incumbents": [
                {**point.as_json(), "point": str(point), "configs": _as_dicts(by_name)}
                for point, by_name in sorted(outlook.incumbents.items())
            ],
        }
        with self._write() as connection:
            now = time_of(connection, self._clock)
            append_event(connection, self._lease.job_id, now, PLANNED, data)
        self._incumbents = named

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
        data = {
            "tried": len(new),
            "new": inserted,
            "statuses": Counter(trial.measurement.status.value for trial in new),
            "best_us": best,
            "incumbents_us": self._incumbent_times(new),
        }
        now = time_of(connection, self._clock)
        count = jobs.c.trial_count + len(new)
        append_event(connection, self._lease.job_id, now, "trials", data, trial_count=count)
        return inserted

    def _incumbent_times(self, new: Sequence[Trial]) -> dict[str, dict[str, float]]:
        """The times of the incumbents among some trials, by point and name."""
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
        now = time_of(connection, self._clock)
        cost = cost_columns(Cost.of(totals))
        move(connection, self._lease.job_id, JobState.DONE, now, error="", **cost)
        data = {"run_id": run.id, "totals": asdict(totals)}
        append_event(connection, self._lease.job_id, now, JobState.DONE.value, data)


def _as_dicts(by_name: Mapping[str, Config]) -> dict[str, dict[str, int]]:
    return {name: dict(config) for name, config in by_name.items()}


def _best(connection: Connection, run_id: int, points: Iterable[Point]) -> dict[str, float]:
    """Triton's best time of the run so far, in microseconds, at each of these points with one."""
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

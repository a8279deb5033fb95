"""Runs and trials, from which tuning resumes, and winners, which are exported."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Table,
    Text,
    case,
    cast,
    func,
    select,
    tuple_,
    update,
)

from tuner.errors import RunAlreadyActive
from tuner.jobs.job import PLANNED, Cost, JobState, Lease
from tuner.problems.points import TRITON, Candidate, Point, Problem
from tuner.problems.registry import parts
from tuner.problems.results import (
    Entry,
    Environment,
    Outlook,
    Run,
    RunKey,
    RunState,
    Totals,
    Trial,
    Winner,
)
from tuner.store.current_winners import current_winners
from tuner.store.database import Clock, Database, insert_into, time_of, utc_now
from tuner.store.job_rows import append_event, cost_columns, leased_row, move
from tuner.store.rows import (
    ENVIRONMENT_FIELDS,
    entry_row,
    environment_row,
    read_run,
    read_trial,
    read_winner,
    run_row,
    storable,
    trial_row,
)
from tuner.store.tables import (
    POINT_COLUMNS,
    WINNER_KEY,
    environments,
    jobs,
    problems,
    runs,
    trials,
    winners,
)

ENVIRONMENT_COLUMNS = [environments.c[name] for name in ENVIRONMENT_FIELDS]
SELECT_WINNERS = (  # the rows that `read_winner` reads
    select(winners, problems.c.spec, *ENVIRONMENT_COLUMNS)
    .join(problems, winners.c.problem_id == problems.c.id)
    .join(environments, winners.c.environment_id == environments.c.id)
)


class Store(Database):
    """A database of runs, trials and winners.

    Every method is one transaction, and raises UnusableStore when the database fails.
    """

    def begin_run(self, key: RunKey) -> Run:
        """Begin the run with this key: a new one, or the stored one with its trials."""
        with self.write() as connection:
            return self._begin(connection, key)

    def trials(self, run: Run) -> list[Trial]:
        """A run's trials in the order in which they were added."""
        query = select(trials).where(trials.c.run_id == run.id).order_by(trials.c.id)
        with self.read() as connection:
            return [read_trial(row) for row in connection.execute(query).mappings()]

    def add_trials(self, run: Run, new: Iterable[Trial]) -> None:
        """Add all trials or none. A candidate's first trial stays where the run has one already."""
        added = list(new)
        if added:
            with self.write() as connection:
                self._add(connection, run, added)

    def expect(self, run: Run, outlook: Outlook) -> None:
        """Do nothing: nobody follows a run that is not a job's."""

    def finish_run(self, run: Run, entries: Iterable[Entry], totals: Totals) -> None:
        """Publish the run's entries as winners and mark it DONE, all or nothing.

        An entry replaces the winner with the same problem, environment, point and status. So a
        predicted entry never replaces a measured one.
        """
        with self.write() as connection:
            self._finish(connection, run, entries, totals)

    def stop_run(self, run: Run, state: RunState, reason: str = "") -> None:
        """Mark a run FAILED or INTERRUPTED. Its trials stay, and the run can begin again."""
        with self.write() as connection:
            _set_run(connection, run.id, state=state.value, reason=storable(reason))

    def winners(
        self,
        *,
        device: str,
        engine: str,
        engine_version: str | None = None,
        triton: str | None = None,
        problem: Problem | None = None,
    ) -> list[Winner]:
        """The current winners, in order of problem, size and part (up before down).

        `current_winners` tells which one is current where a point has several.
        """
        wanted: dict[Any, str | None] = {
            environments.c.device: device,
            environments.c.engine: engine,
            environments.c.engine_version: engine_version,
            environments.c.triton: triton,
            problems.c.spec: problem.spec() if problem else None,
        }
        conditions = [field == value for field, value in wanted.items() if value is not None]
        return current_winners(self._winners(*conditions))

    def winners_state(self, *, device: str, engine: str, engine_version: str) -> str:
        """A text that changes whenever `winners` of these would answer otherwise.

        Entries that were published together have one time, and keep it until they are replaced.
        """
        place = environments.c.device, environments.c.engine, environments.c.engine_version
        wanted = zip(place, (device, engine, engine_version), strict=True)
        here = select(environments.c.id).where(*(field == value for field, value in wanted))
        at = winners.c.environment_id, winners.c.published_at
        # An index has all of this, in this order.
        query = select(*at[:1], cast(at[1], Text), func.count()).group_by(*at).order_by(*at)
        with self.read() as connection:
            rows = connection.execute(query.where(at[0].in_(here)))
            return hashlib.sha256(repr([tuple(row) for row in rows]).encode()).hexdigest()

    def winners_in(self, problem: Problem, environment: Environment) -> list[Winner]:
        """All winners for a problem in an environment, current or not."""
        return self._winners(
            problems.c.spec == problem.spec(),
            environments.c.fingerprint == environment.fingerprint,
        )

    def _winners(self, *conditions: ColumnElement[bool]) -> list[Winner]:
        query = SELECT_WINNERS.where(*conditions).order_by(problems.c.id, *by_point())
        with self.read() as connection:
            return [read_winner(row) for row in connection.execute(query).mappings()]

    # The next three run in the caller's transaction, so that a subclass may add to it.

    def _begin(self, connection: Connection, key: RunKey) -> Run:
        now = utc_now()
        row = {
            **run_row(key),
            "problem_id": _id_of(connection, problems, _problem_row(key.problem), "spec"),
            "environment_id": _environment_id(connection, key.environment),
            "state": RunState.RUNNING.value,
            "reason": "",
            "created_at": now,
            "updated_at": now,
        }
        run_id = _id_of(connection, runs, row, "fingerprint")
        _set_run(connection, run_id, state=RunState.RUNNING.value, reason="")
        return _read_run(connection, run_id)

    def _add(self, connection: Connection, run: Run, new: Sequence[Trial]) -> int:
        """Add trials, and return how many of them were new."""
        insert = insert_into(connection, trials).on_conflict_do_nothing()
        inserted = connection.execute(insert, [trial_row(run.id, trial) for trial in new])
        _set_run(connection, run.id)
        return inserted.rowcount

    def _finish(
        self, connection: Connection, run: Run, entries: Iterable[Entry], totals: Totals
    ) -> None:
        published = {
            "run_id": run.id,
            "problem_id": _id_of(connection, problems, _problem_row(run.key.problem), "spec"),
            "environment_id": _environment_id(connection, run.key.environment),
            "published_at": utc_now(),
        }
        for entry in entries:
            _publish(connection, {**published, **entry_row(entry)})
        _set_run(connection, run.id, state=RunState.DONE.value, totals=asdict(totals))


def by_point() -> tuple[ColumnElement[Any], ...]:
    """Columns that sort winners by size, then by part in the order of launch."""
    return (
        winners.c.batch_size,
        winners.c.new_tokens,
        winners.c.cached_tokens,
        case({part.value: at for at, part in enumerate(parts())}, value=winners.c.part),
    )


def _problem_row(problem: Problem) -> dict[str, Any]:
    return {"spec": problem.spec(), "family": problem.family}


def _environment_id(connection: Connection, environment: Environment) -> int:
    return _id_of(connection, environments, environment_row(environment), "fingerprint")


def _id_of(connection: Connection, target: Table, row: dict[str, Any], unique: str) -> int:
    """The id of the row with this unique value. Inserts the row where there is none."""
    query = select(target.c.id).where(target.c[unique] == row[unique])
    found = connection.execute(query).scalar()
    if found is None:
        connection.execute(insert_into(connection, target).on_conflict_do_nothing(), row)
        found = connection.execute(query).scalar_one()
    return int(found)


def _publish(connection: Connection, row: dict[str, Any]) -> None:
    changes = {name: value for name, value in row.items() if name not in WINNER_KEY}
    insert = insert_into(connection, winners).values(row)
    connection.execute(insert.on_conflict_do_update(index_elements=WINNER_KEY, set_=changes))


def _set_run(connection: Connection, run_id: int, **values: object) -> None:
    row = runs.c.id == run_id
    connection.execute(update(runs).where(row).values(updated_at=utc_now(), **values))


def _read_run(connection: Connection, run_id: int) -> Run:
    query = (
        select(runs, problems.c.spec, *ENVIRONMENT_COLUMNS)
        .join(problems, runs.c.problem_id == problems.c.id)
        .join(environments, runs.c.environment_id == environments.c.id)
        .where(runs.c.id == run_id)
    )
    return read_run(connection.execute(query).mappings().one())


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
    def write(self) -> Iterator[Connection]:
        with super().write() as connection:
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
                {
                    **point.as_json(),
                    "point": str(point),
                    "configs": {name: dict(config) for name, config in by_name.items()},
                }
                for point, by_name in sorted(outlook.incumbents.items())
            ],
        }
        with self.write() as connection:
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

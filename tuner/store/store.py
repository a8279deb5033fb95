"""The store: runs and their trials, to resume from; winners, to export."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from types import TracebackType
from typing import Any

from sqlalchemy import Connection, Engine, Table, select, update
from sqlalchemy.dialects import postgresql, sqlite

from tuner.problems import FusedMoe
from tuner.results import Entry, Environment, Status, Totals, Trial
from tuner.store.connect import connect, translated, use_wal, writer
from tuner.store.records import Run, RunKey, RunState, Winner
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
from tuner.store.schema import bring_to_head
from tuner.store.tables import environments, problems, runs, trials, winners

_ENVIRONMENT_COLUMNS = [environments.c[name] for name in ENVIRONMENT_FIELDS]


class Store:
    """A database of runs, trials and winners. Safe to share between threads, not over a fork.

    Several processes may open and write one store. Every method is one transaction, and
    raises UnusableStore when the database fails.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writer = writer(engine)

    @classmethod
    def open(cls, url: str) -> Store:
        """Open the store at `url` (see `database_url`), made or migrated as needed.

        Raises UnusableStore, with nothing written, for a URL that names no SQLite or PostgreSQL
        database, one that cannot be reached or written, or one with a newer version's schema.
        """
        engine = connect(url)
        with translated(engine.url):
            bring_to_head(writer(engine))
            use_wal(engine)
        return cls(engine)

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def begin_run(self, key: RunKey) -> Run:
        """The run with this key, now RUNNING: a new one, or the stored one with its trials."""
        now = _now()
        with self._write() as connection:
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

    def trials(self, run: Run) -> list[Trial]:
        """A run's trials in the order in which they were added."""
        query = select(trials).where(trials.c.run_id == run.id).order_by(trials.c.id)
        with self._read() as connection:
            return [read_trial(row) for row in connection.execute(query).mappings()]

    def add_trials(self, run: Run, new: Iterable[Trial]) -> None:
        """Add trials, all or none. A candidate that the run has already keeps its first trial."""
        rows = [trial_row(run.id, trial) for trial in new]
        if not rows:
            return
        with self._write() as connection:
            connection.execute(_insert(connection, trials).on_conflict_do_nothing(), rows)
            _set_run(connection, run.id)

    def finish_run(self, run: Run, entries: Iterable[Entry], totals: Totals) -> None:
        """Publish the run's entries as winners and mark it DONE, all or nothing.

        An entry replaces the winner of the same problem, environment, point and status, so a
        predicted one never replaces a measured one.
        """
        with self._write() as connection:
            published = {
                "run_id": run.id,
                "problem_id": _id_of(connection, problems, _problem_row(run.key.problem), "spec"),
                "environment_id": _environment_id(connection, run.key.environment),
                "published_at": _now(),
            }
            for entry in entries:
                _publish(connection, {**published, **entry_row(entry)})
            _set_run(connection, run.id, state=RunState.DONE.value, totals=asdict(totals))

    def stop_run(self, run: Run, state: RunState, reason: str = "") -> None:
        """Mark a run FAILED or INTERRUPTED. Its trials stay, and it can be begun again."""
        with self._write() as connection:
            _set_run(connection, run.id, state=state.value, reason=storable(reason))

    def winners(
        self,
        *,
        device: str,
        engine: str,
        engine_version: str | None = None,
        triton: str | None = None,
        problem: FusedMoe | None = None,
    ) -> list[Winner]:
        """The winners in force, in order of problem, batch size and gemm (up first).

        At each batch size of a problem all gemms come from one environment: a measured one
        before a predicted one before an untuned one, then the one published last.
        """
        wanted: dict[Any, str | None] = {
            environments.c.device: device,
            environments.c.engine: engine,
            environments.c.engine_version: engine_version,
            environments.c.triton: triton,
            problems.c.spec: problem.spec() if problem else None,
        }
        query = (
            select(winners, problems.c.spec, *_ENVIRONMENT_COLUMNS)
            .join(problems, winners.c.problem_id == problems.c.id)
            .join(environments, winners.c.environment_id == environments.c.id)
            .where(*(field == value for field, value in wanted.items() if value is not None))
            .order_by(problems.c.id, winners.c.batch_size, winners.c.gemm.desc())
        )
        with self._read() as connection:
            found = [read_winner(row) for row in connection.execute(query).mappings()]
        return _in_force(found)

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with translated(self._engine.url), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with translated(self._engine.url), self._writer.begin() as connection:
            yield connection


# What stands, of several: a measured entry, else a predicted one, else one nobody tuned.
_TRUST = {Status.OK: 2, Status.PREDICTED: 1, Status.INCUMBENT: 0}


def _in_force(found: list[Winner]) -> list[Winner]:
    def place(winner: Winner) -> tuple[FusedMoe, int]:
        return winner.problem, winner.entry.point.batch_size

    def source(winner: Winner) -> tuple[Environment, Status]:
        return winner.environment, winner.entry.status

    def rank(winner: Winner) -> tuple[int, datetime, int]:
        return _TRUST[winner.entry.status], winner.published_at, winner.run_id

    best = {place(winner): source(winner) for winner in sorted(found, key=rank)}  # the last stays
    return [winner for winner in found if source(winner) == best[place(winner)]]


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _problem_row(problem: FusedMoe) -> dict[str, Any]:
    return {"spec": problem.spec(), "family": problem.family}


def _environment_id(connection: Connection, environment: Environment) -> int:
    return _id_of(connection, environments, environment_row(environment), "fingerprint")


def _insert(connection: Connection, target: Table) -> postgresql.Insert | sqlite.Insert:
    # SQLAlchemy has no portable ON CONFLICT; the two databases' forms are spelt alike.
    if connection.dialect.name == "postgresql":
        return postgresql.insert(target)
    return sqlite.insert(target)


def _id_of(connection: Connection, target: Table, row: dict[str, Any], unique: str) -> int:
    """The id of the row with this value in its unique column, inserted where there is none."""
    query = select(target.c.id).where(target.c[unique] == row[unique])
    found = connection.execute(query).scalar()
    if found is None:
        connection.execute(_insert(connection, target).on_conflict_do_nothing(), row)
        found = connection.execute(query).scalar_one()
    return int(found)


def _publish(connection: Connection, row: dict[str, Any]) -> None:
    unique = ["environment_id", "problem_id", "status", "batch_size", "gemm"]
    changes = {name: value for name, value in row.items() if name not in unique}
    insert = _insert(connection, winners).values(row)
    connection.execute(insert.on_conflict_do_update(index_elements=unique, set_=changes))


def _set_run(connection: Connection, run_id: int, **values: object) -> None:
    connection.execute(update(runs).where(runs.c.id == run_id).values(updated_at=_now(), **values))


def _read_run(connection: Connection, run_id: int) -> Run:
    query = (
        select(runs, problems.c.spec, *_ENVIRONMENT_COLUMNS)
        .join(problems, runs.c.problem_id == problems.c.id)
        .join(environments, runs.c.environment_id == environments.c.id)
        .where(runs.c.id == run_id)
    )
    return read_run(connection.execute(query).mappings().one())

"""Store runs and trials, from which tuning resumes, and winners, which are exported and shown."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, ClassVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    Text,
    and_,
    case,
    cast,
    delete,
    func,
    select,
    tuple_,
    update,
)

from tuner.errors import BadInput
from tuner.jobs.job import JobState
from tuner.problems.points import TRITON, Candidate, Point, Problem
from tuner.problems.registry import parts, read_part
from tuner.problems.results import (
    MISHAPS,
    Entry,
    Environment,
    Outlook,
    Run,
    RunKey,
    RunState,
    Status,
    Totals,
    Trial,
    Winner,
)
from tuner.store.current_winners import beside_predictions, current_winners
from tuner.store.database import Queries, insert_into
from tuner.store.rows import (
    ENVIRONMENT_FIELDS,
    entry_row,
    environment_row,
    is_readable,
    read_run,
    read_trial,
    read_winner,
    run_row,
    storable,
    trial_row,
)
from tuner.store.shelf import winners_for, winners_like
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

# Mishaps that older releases kept; they took a compiler's death for an error of the kernel.
_MISHAP = trials.c.status.in_([status.value for status in MISHAPS]) | (
    (trials.c.status == Status.COMPILE_ERROR.value)
    & trials.c.compile_detail.startswith("the process ended (")
)

# Part, batch size, new tokens, cached tokens, config key, backend.
TrialCursor = tuple[str, int, int, int, str, str]


class ResultStore(Queries):
    """Stores runs with their trials, and winners; reads and withdraws them.

    Every method is a transaction, and raises UnusableStore when the database fails. Winners of the
    shelf stand beside the store's, if the store has none.
    """

    shelf: ClassVar[bool] = True

    def begin_run(self, key: RunKey) -> Run:
        """Begin the run with this key: a new run, or the stored run with its trials.

        Mishaps that an older release stored as trials are forgotten.
        """
        with self._write() as connection:
            return self._begin(connection, key)

    def trials(self, run: Run) -> list[Trial]:
        """Return a run's trials in the order in which they were added."""
        query = select(trials).where(trials.c.run_id == run.id).order_by(trials.c.id)
        with self._read() as connection:
            return [read_trial(row) for row in connection.execute(query).mappings()]

    def add_trials(self, run: Run, new: Iterable[Trial]) -> None:
        """Add all trials or none. If the run has a trial of a candidate already, that trial stays.

        Mishaps are not kept: they are no verdicts.
        """
        added = list(new)
        if added:
            with self._write() as connection:
                self._add(connection, run, added)

    def expect(self, run: Run, outlook: Outlook) -> None:
        """Do nothing: nobody follows a run without a job."""

    def finish_run(self, run: Run, entries: Iterable[Entry], totals: Totals) -> None:
        """Publish the run's entries as winners and mark it DONE, all or nothing.

        An entry replaces the winner with the same problem, environment, point and status. So a
        predicted entry never replaces a measured entry.
        """
        with self._write() as connection:
            self._finish(connection, run, entries, totals)

    def stop_run(self, run: Run, state: RunState, reason: str = "") -> None:
        """Mark a run FAILED or INTERRUPTED. Its trials stay, and the run can begin again."""
        with self._write() as connection:
            self._set_run(connection, run.id, state=state.value, reason=storable(reason))

    def winners(
        self,
        *,
        device: str,
        engine: str,
        engine_version: str | None = None,
        triton: str | None = None,
        problem: Problem | None = None,
    ) -> list[Winner]:
        """Return the current winners, in order of problem, size and part (up before down).

        With a version of the engine, winners may come from the shelf. `current_winners` chooses the
        current winner if a point has several. Each predicted winner has its `unpredicted`.
        """
        wanted: dict[Any, str | None] = {
            environments.c.device: device,
            environments.c.engine: engine,
            environments.c.engine_version: engine_version,
            environments.c.triton: triton,
            problems.c.spec: problem.spec() if problem else None,
        }
        conditions = [field == value for field, value in wanted.items() if value is not None]
        found = self._winners(*conditions)
        if self.shelf and engine_version:
            found = _with_shelf(found, winners_for(device, engine, engine_version, problem))
        return beside_predictions(current_winners(found), found)

    def winners_state(self, *, device: str, engine: str, engine_version: str) -> str:
        """Return a text that changes whenever `winners` of these would answer otherwise.

        Entries that were published together have one time, and keep it until they are replaced.
        """
        place = environments.c.device, environments.c.engine, environments.c.engine_version
        wanted = zip(place, (device, engine, engine_version), strict=True)
        here = select(environments.c.id).where(*(field == value for field, value in wanted))
        at = winners.c.environment_id, winners.c.published_at
        # An index has all of this, in this order.
        query = select(*at[:1], cast(at[1], Text), func.count()).group_by(*at).order_by(*at)
        with self._read() as connection:
            rows = connection.execute(query.where(at[0].in_(here)))
            return hashlib.sha256(repr([tuple(row) for row in rows]).encode()).hexdigest()

    def winners_in(self, problem: Problem, environment: Environment) -> list[Winner]:
        """Return all winners for a problem in an environment, current or not.

        Winners of the shelf come first. They may have been measured with another driver.
        """
        found = winners_like(problem, environment) if self.shelf else []
        return found + self._winners(
            problems.c.spec == problem.spec(),
            environments.c.fingerprint == environment.fingerprint,
        )

    def _winners(self, *conditions: ColumnElement[bool]) -> list[Winner]:
        query = SELECT_WINNERS.where(*conditions).order_by(problems.c.id, *by_point())
        with self._read() as connection:
            rows = connection.execute(query).mappings()
            return [read_winner(row) for row in rows if is_readable(row["spec"])]

    def winners_at(self, problem: Problem, device: str, engine: str) -> Sequence[Winner]:
        """Return the winners of all environments, for a problem on a device with an engine."""
        query = SELECT_WINNERS.where(
            problems.c.spec == problem.spec(),
            environments.c.device == device,
            environments.c.engine == engine,
        )
        query = query.order_by(winners.c.environment_id, *by_point(), winners.c.status)
        with self._read() as connection:
            return [read_winner(row) for row in connection.execute(query).mappings()]

    def withdraw(self, problem: Problem, device: str, engine: str) -> int:
        """Delete the winners that `winners_at` returns; return how many there were.

        Runs and trials stay. But no request is answered with them any more: it is tuned anew.
        """
        mine = select(problems.c.id).where(problems.c.spec == problem.spec())
        here = and_(environments.c.device == device, environments.c.engine == engine)
        with self._write() as connection:
            places = _lock_environments(connection, here)

            def of(table: Table) -> ColumnElement[bool]:
                return and_(table.c.problem_id.in_(mine), table.c.environment_id.in_(places))

            gone = connection.execute(delete(winners).where(of(winners))).rowcount
            their_runs = select(runs.c.id).where(of(runs))
            done = jobs.c.run_id.in_(their_runs), jobs.c.state == JobState.DONE.value
            # Keys that no request has.
            ended = update(jobs).where(*done).values(request_key="withdrawn " + jobs.c.id)
            connection.execute(ended)
            name = "withdrawn " + cast(runs.c.id, Text)
            connection.execute(update(runs).where(of(runs)).values(fingerprint=name))
            return gone

    def trials_page(self, run_id: int, after: TrialCursor | None, limit: int) -> Sequence[Trial]:
        """Return a page of a run's trials, in order of part, size and configuration."""
        place = [trials.c[name] for name in (*POINT_COLUMNS, "config_key", "backend")]
        query = select(trials).where(trials.c.run_id == run_id).order_by(*place).limit(limit)
        if after is not None:
            query = query.where(tuple_(*place) > after)
        with self._read() as connection:
            return [read_trial(row) for row in connection.execute(query).mappings()]

    def winners_of(self, run_id: int) -> Sequence[Winner]:
        """Return the winners for a run's problem in its environment, from that run or a
        later run.
        """
        same = (runs.c.environment_id == winners.c.environment_id) & (
            runs.c.problem_id == winners.c.problem_id
        )
        query = SELECT_WINNERS.join(runs, same).where(runs.c.id == run_id)
        query = query.order_by(*by_point(), winners.c.status)
        with self._read() as connection:
            return [read_winner(row) for row in connection.execute(query).mappings()]

    def trial_counts(self, run_id: int) -> dict[Status, int]:
        """Return the number of a run's trials by their status."""
        query = select(trials.c.status, func.count()).where(trials.c.run_id == run_id)
        with self._read() as connection:
            rows = connection.execute(query.group_by(trials.c.status))
            return {Status(status): count for status, count in rows}

    def times_of(self, run_id: int, some: Collection[Candidate]) -> dict[Candidate, float]:
        """Return the times in a run, in microseconds, of the candidates that have a time."""
        place = [trials.c[name] for name in POINT_COLUMNS]
        query = select(trials.c.config_key, trials.c.median_us, *place).where(
            trials.c.run_id == run_id,
            trials.c.median_us.is_not(None),
            trials.c.backend == TRITON,
            trials.c.config_key.in_({one.config.key for one in some}),
        )
        with self._read() as connection:
            times = {(key, *at): time for key, time, *at in connection.execute(query)}
        wanted = {(one.config.key, *_columns(one.point)): one for one in some}
        return {wanted[at]: time for at, time in times.items() if at in wanted}

    def best_trials(self, run_id: int) -> dict[Point, float]:
        """Return Triton's best time of a run so far, in microseconds, at each point that has a
        time.
        """
        place = [trials.c[name] for name in POINT_COLUMNS]
        query = (
            select(*place, func.min(trials.c.median_us))
            .where(trials.c.run_id == run_id, trials.c.median_us.is_not(None))
            .where(trials.c.backend == TRITON)
            .group_by(*place)
        )
        with self._read() as connection:
            rows = connection.execute(query).all()
        return {Point(size, read_part(part), *rest): best for part, size, *rest, best in rows}

    # The next three run in the caller's transaction, so that a subclass may add to it.

    def _begin(self, connection: Connection, key: RunKey) -> Run:
        now = self._now(connection)
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
        connection.execute(delete(trials).where(trials.c.run_id == run_id, _MISHAP))
        self._set_run(connection, run_id, state=RunState.RUNNING.value, reason="")
        return run_of(connection, run_id)

    def _add(self, connection: Connection, run: Run, new: Sequence[Trial]) -> int:
        """Add trials, and return how many of them were new."""
        insert = insert_into(connection, trials).on_conflict_do_nothing()
        rows = [trial_row(run.id, trial) for trial in new if not trial.lost]
        self._set_run(connection, run.id)
        return connection.execute(insert, rows).rowcount if rows else 0

    def _finish(
        self, connection: Connection, run: Run, entries: Iterable[Entry], totals: Totals
    ) -> None:
        environment_id = _environment_id(connection, run.key.environment)
        published = {
            "run_id": run.id,
            "problem_id": _id_of(connection, problems, _problem_row(run.key.problem), "spec"),
            "environment_id": environment_id,
            "published_at": self._next_time(connection, environment_id),
        }
        for entry in entries:
            _publish(connection, {**published, **entry_row(entry)})
        self._set_run(connection, run.id, state=RunState.DONE.value, totals=asdict(totals))

    def _next_time(self, connection: Connection, environment_id: int) -> datetime:
        """Return the time, or just after the newest winner of the environment if a clock went back.

        The environment is locked until the transaction ends. So later publications have later
        times, and are seen later, even if clocks differ.
        """
        _lock_environments(connection, environments.c.id == environment_id)
        newest = func.max(winners.c.published_at)
        query = select(newest).where(winners.c.environment_id == environment_id)
        before, now = connection.execute(query).scalar(), self._now(connection)
        return now if before is None else max(now, before + timedelta(microseconds=1))

    def _set_run(self, connection: Connection, run_id: int, **values: object) -> None:
        change = update(runs).where(runs.c.id == run_id)
        connection.execute(change.values(updated_at=self._now(connection), **values))


def _with_shelf(found: list[Winner], others: Sequence[Winner]) -> list[Winner]:
    """Add winners of the shelf to a store's, in order of problem, size and part.

    If both have a point of an environment, the store's counts.
    """
    if not others:
        return found
    own = {(w.problem, w.environment, w.entry.point, w.status) for w in found}
    found += [w for w in others if (w.problem, w.environment, w.entry.point, w.status) not in own]
    place = {problem: at for at, problem in enumerate(dict.fromkeys(w.problem for w in found))}
    order = {part: at for at, part in enumerate(parts())}
    return sorted(
        found,
        key=lambda w: (place[w.problem], _columns(w.entry.point)[1:], order[w.entry.point.part]),
    )


def by_point() -> tuple[ColumnElement[Any], ...]:
    """Return columns that sort winners by size, then by part in the order of launch."""
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
    """Return the id of the row with this unique value. Inserts the row if there is none."""
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


def _lock_environments(connection: Connection, which: ColumnElement[bool]) -> list[int]:
    """Keep other transactions from changing winners in these environments; return their ids."""
    query = select(environments.c.id).where(which).order_by(environments.c.id)
    return list(connection.execute(query.with_for_update(key_share=True)).scalars())


def run_of(connection: Connection, run_id: int) -> Run:
    query = (
        select(runs, problems.c.spec, *ENVIRONMENT_COLUMNS)
        .join(problems, runs.c.problem_id == problems.c.id)
        .join(environments, runs.c.environment_id == environments.c.id)
        .where(runs.c.id == run_id)
    )
    return read_run(connection.execute(query).mappings().one())


def _columns(point: Point) -> tuple[str | int, ...]:
    return point.part.value, point.batch_size, point.new_tokens, point.cached_tokens


def trial_cursor(trial: Trial) -> TrialCursor:
    """Return the cursor with which `ResultStore.trials_page` continues after a trial."""
    tried = trial.candidate
    point, last = tried.point, (tried.config.key, tried.backend)
    return point.part.value, point.batch_size, point.new_tokens, point.cached_tokens, *last


def parse_trial_cursor(values: object) -> TrialCursor:
    """Read a cursor from JSON. Raises BadInput, also for values that a database cannot compare."""
    match values:
        case [str(part), int(size), int(new), int(cached), str(key), str(backend)]:
            texts, numbers = key + backend, (size, new, cached)
            whole = all(type(one) is int and 0 <= one < 1 << 31 for one in numbers)
            if whole and texts.isascii() and "\0" not in texts:
                return read_part(part).value, size, new, cached, key, backend
    raise BadInput("not a place in a list of trials")

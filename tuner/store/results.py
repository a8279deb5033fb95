"""What the service shows of one result or one run."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import delete, func, select, tuple_

from tuner.errors import BadInput
from tuner.problems.points import TRITON, Candidate, Point, Problem
from tuner.problems.registry import read_part
from tuner.problems.results import Status, Trial, Winner
from tuner.store.database import Queries
from tuner.store.rows import read_trial, read_winner
from tuner.store.store import SELECT_WINNERS, by_point
from tuner.store.tables import POINT_COLUMNS, environments, problems, runs, trials, winners

# Part, batch size, new tokens, cached tokens, config key, backend.
TrialCursor = tuple[str, int, int, int, str, str]


class ResultStore(Queries):
    """Reads results, and withdraws them.

    Methods are single transactions; a failing database raises UnusableStore.
    """

    def winners_at(self, problem: Problem, device: str, engine: str) -> Sequence[Winner]:
        """The winners of all environments, for a problem on a device with an engine."""
        query = SELECT_WINNERS.where(
            problems.c.spec == problem.spec(),
            environments.c.device == device,
            environments.c.engine == engine,
        )
        query = query.order_by(winners.c.environment_id, *by_point(), winners.c.status)
        with self._read() as connection:
            return [read_winner(row) for row in connection.execute(query).mappings()]

    def withdraw(self, problem: Problem, device: str, engine: str) -> int:
        """Delete the winners that `winners_at` answers; returns how many there were.

        Runs and trials stay: they say what was tried.
        """
        mine = select(problems.c.id).where(problems.c.spec == problem.spec())
        places = select(environments.c.id).where(
            environments.c.device == device, environments.c.engine == engine
        )
        with self._write() as connection:
            done = connection.execute(
                delete(winners).where(
                    winners.c.problem_id.in_(mine), winners.c.environment_id.in_(places)
                )
            )
            return done.rowcount

    def trials(self, run_id: int, after: TrialCursor | None, limit: int) -> Sequence[Trial]:
        """A page of a run's trials, in order of part, size and configuration."""
        place = [trials.c[name] for name in (*POINT_COLUMNS, "config_key", "backend")]
        query = select(trials).where(trials.c.run_id == run_id).order_by(*place).limit(limit)
        if after is not None:
            query = query.where(tuple_(*place) > after)
        with self._read() as connection:
            return [read_trial(row) for row in connection.execute(query).mappings()]

    def winners_of(self, run_id: int) -> Sequence[Winner]:
        """The winners for a run's problem in its environment, from that run or a later one."""
        same = (runs.c.environment_id == winners.c.environment_id) & (
            runs.c.problem_id == winners.c.problem_id
        )
        query = SELECT_WINNERS.join(runs, same).where(runs.c.id == run_id)
        query = query.order_by(*by_point(), winners.c.status)
        with self._read() as connection:
            return [read_winner(row) for row in connection.execute(query).mappings()]

    def trial_counts(self, run_id: int) -> dict[Status, int]:
        """The number of a run's trials by their status."""
        query = select(trials.c.status, func.count()).where(trials.c.run_id == run_id)
        with self._read() as connection:
            rows = connection.execute(query.group_by(trials.c.status))
            return {Status(status): count for status, count in rows}

    def times_of(self, run_id: int, some: Collection[Candidate]) -> dict[Candidate, float]:
        """The times in a run, in microseconds, of those of some candidates that have one."""
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
        """Triton's best time of a run so far, in microseconds, at each point that has one."""
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


def _columns(point: Point) -> tuple[str | int, ...]:
    """A point's values of POINT_COLUMNS."""
    return point.part.value, point.batch_size, point.new_tokens, point.cached_tokens


def trial_cursor(trial: Trial) -> TrialCursor:
    """The cursor with which `ResultStore.trials` continues after a trial."""
    tried = trial.candidate
    point, last = tried.point, (tried.config.key, tried.backend)
    return point.part.value, point.batch_size, point.new_tokens, point.cached_tokens, *last


def parse_trial_cursor(values: object) -> TrialCursor:
    """A cursor from JSON. Raises BadInput."""
    match values:
        case [str(part), int(size), int(new), int(cached), str(key), str(backend)]:
            return read_part(part).value, size, new, cached, key, backend
    raise BadInput("not a place in a list of trials")

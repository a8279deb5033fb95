"""What the service shows of the store: page by page, each page a walk along an index."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from sqlalchemy import Connection, RowMapping, func, select, tuple_

from tuner.errors import BadInput
from tuner.problems import PARTS, Problem, parse_problem
from tuner.results import Environment, Status, Trial
from tuner.store.database import Database
from tuner.store.job_tables import jobs
from tuner.store.records import Winner
from tuner.store.rows import ENVIRONMENT_FIELDS, read_environment, read_trial, read_winner
from tuner.store.store import BY_POINT, in_force
from tuner.store.tables import POINT_COLUMNS, environments, problems, runs, trials, winners

_ENVIRONMENT_COLUMNS = [environments.c[name] for name in ENVIRONMENT_FIELDS]
# Part, batch size, new tokens, cached tokens, config key.
TrialPlace = tuple[str, int, int, int, str]


_PARTS = {part.value for part in PARTS}


@dataclass(frozen=True)
class Held:
    """What the store holds for one problem in one environment."""

    place: tuple[int, int]  # (environment, problem): where the next page goes on
    environment: Environment
    problem: Problem
    points: dict[Status, int]  # how many points have a winner of that status
    oldest: datetime
    newest: datetime


@dataclass(frozen=True)
class Seen:
    """An environment with winners. It is one family's, or attention's: each has its kernels."""

    environment: Environment
    family: str  # of one of its problems
    newest: datetime  # of its winners


class Lookups(Database):
    """Every method is one transaction, and raises UnusableStore when the database fails."""

    def trials(self, run_id: int, after: TrialPlace | None, limit: int) -> Sequence[Trial]:
        """A page of a run's trials, by part, size and configuration."""
        place = [trials.c[name] for name in (*POINT_COLUMNS, "config_key")]
        query = select(trials).where(trials.c.run_id == run_id).order_by(*place).limit(limit)
        if after is not None:
            query = query.where(tuple_(*place) > after)
        with self._read() as connection:
            return [read_trial(row) for row in connection.execute(query).mappings()]

    def winners_of(self, run_id: int) -> Sequence[Winner]:
        """What is published for the run's problem in its environment: by it, or by a later run."""
        query = (
            select(winners, problems.c.spec, *_ENVIRONMENT_COLUMNS)
            .join(problems, winners.c.problem_id == problems.c.id)
            .join(environments, winners.c.environment_id == environments.c.id)
            .join(
                runs,
                (runs.c.environment_id == winners.c.environment_id)
                & (runs.c.problem_id == winners.c.problem_id),
            )
            .where(runs.c.id == run_id)
            .order_by(*BY_POINT, winners.c.status)
        )
        with self._read() as connection:
            return [read_winner(row) for row in connection.execute(query).mappings()]

    def winners_of_problems(
        self, device: str, engine: str, wanted: Collection[Problem]
    ) -> list[Winner]:
        """The winners in force of some problems; and of each environment one of its newest,
        whatever its problem, so that it can be told which environment is the newest.
        """
        newest = winners.alias()
        newest_of_each = (
            select(newest.c.id)
            .where(newest.c.environment_id == environments.c.id)
            .where(newest.c.status.in_([Status.OK.value, Status.PREDICTED.value]))
            .order_by(newest.c.published_at.desc())
            .limit(1)
            .scalar_subquery()
        )
        query = (
            select(winners, problems.c.spec, *_ENVIRONMENT_COLUMNS)
            .join(problems, winners.c.problem_id == problems.c.id)
            .join(environments, winners.c.environment_id == environments.c.id)
            .where(environments.c.device == device, environments.c.engine == engine)
        )
        mine = query.where(problems.c.spec.in_([problem.spec() for problem in wanted]))
        with self._read() as connection:
            found = [read_winner(row) for row in connection.execute(mine).mappings()]
            others = connection.execute(query.where(winners.c.id == newest_of_each)).mappings()
            return in_force(found) + [read_winner(row) for row in others]

    def environments(self, device: str | None = None) -> Sequence[Seen]:
        """The environments with winners."""
        mine = winners.c.environment_id == environments.c.id
        newest = select(func.max(winners.c.published_at)).where(mine).scalar_subquery()
        family = (
            select(problems.c.family)
            .join(winners, problems.c.id == winners.c.problem_id)
            .where(mine)
            .limit(1)
            .scalar_subquery()
        )
        query = select(*_ENVIRONMENT_COLUMNS, newest.label("newest"), family.label("family"))
        if device is not None:
            query = query.where(environments.c.device == device)
        with self._read() as connection:
            rows = connection.execute(query.order_by(environments.c.id)).mappings()
            return [
                Seen(read_environment(row), row["family"], row["newest"])
                for row in rows
                if row["newest"]
            ]

    def held(self, device: str | None, after: tuple[int, int] | None, limit: int) -> Sequence[Held]:
        """A page of what is stored, by environment and problem."""
        found: list[Held] = []
        first, skip = after or (0, 0)
        query = select(environments).where(environments.c.id >= first).order_by(environments.c.id)
        if device is not None:
            query = query.where(environments.c.device == device)
        with self._read() as connection:
            # One environment after the other: asked for several at once, PostgreSQL reads the
            # winners of all others before them.
            for row in connection.execute(query).mappings().all():
                past = skip if row["id"] == first else 0
                found += _held(connection, row, past, limit - len(found))
                if len(found) == limit:
                    break
        return found

    def unfinished(self) -> dict[tuple[str, str], int]:
        """How many jobs are queued, leased and running, by (state, device)."""
        query = (
            select(jobs.c.state, jobs.c.device, func.count())
            .where(jobs.c.state.in_(["queued", "leased", "running"]))
            .group_by(jobs.c.state, jobs.c.device)
        )
        with self._read() as connection:
            return {(state, device): count for state, device, count in connection.execute(query)}

    def ping(self) -> None:
        """Raises UnusableStore where the database does not answer."""
        with self._read() as connection:
            connection.execute(select(1))


def trial_place(trial: Trial) -> TrialPlace:
    """Where `Lookups.trials` goes on after that trial."""
    point, key = trial.candidate.point, trial.candidate.config.key
    return point.part.value, point.batch_size, point.new_tokens, point.cached_tokens, key


def parse_trial_place(values: object) -> TrialPlace:
    """Raises BadInput."""
    match values:
        case [str(part), int(size), int(new), int(cached), str(key)] if part in _PARTS:
            return part, size, new, cached, key
    raise BadInput("not a place in a list of trials")


def _held(connection: Connection, environment: RowMapping, past: int, limit: int) -> list[Held]:
    """Of one environment, the next so many problems with an id above `past`."""
    mine = winners.c.environment_id == environment["id"]
    page = (
        select(winners.c.problem_id)
        .where(mine, winners.c.problem_id > past)
        .group_by(winners.c.problem_id)
        .order_by(winners.c.problem_id)
        .limit(limit)
    )
    wanted = connection.execute(page).scalars().all()
    query = (
        select(
            winners.c.problem_id,
            problems.c.spec,
            winners.c.status,
            func.count().label("points"),
            func.min(winners.c.published_at).label("oldest"),
            func.max(winners.c.published_at).label("newest"),
        )
        .join(problems, problems.c.id == winners.c.problem_id)
        .where(mine, winners.c.problem_id.in_(wanted))
        .group_by(winners.c.problem_id, problems.c.spec, winners.c.status)
        .order_by(winners.c.problem_id)
    )
    rows = connection.execute(query).mappings().all() if wanted else []
    return [
        Held(
            place=(environment["id"], problem_id),
            environment=read_environment(environment),
            problem=parse_problem(group[0]["spec"]),
            points={Status(row["status"]): row["points"] for row in group},
            oldest=min(row["oldest"] for row in group),
            newest=max(row["newest"] for row in group),
        )
        for problem_id, group in (
            (key, list(rows)) for key, rows in groupby(rows, lambda row: row["problem_id"])
        )
    ]

"""Look up results by environment and problem. Lists come in pages, each a walk along an index."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Text,
    case,
    cast,
    func,
    literal_column,
    select,
)

from tuner.problems.points import Problem
from tuner.problems.registry import parse_problem, problem_names
from tuner.problems.results import WINNING, Environment, Published, Status
from tuner.store.current_winners import current_points
from tuner.store.database import Queries
from tuner.store.results import ENVIRONMENT_COLUMNS
from tuner.store.rows import is_readable, read_environment, read_points
from tuner.store.shelf import published_for
from tuner.store.tables import POINT_COLUMNS, environments, problems, runs, winners

Seen = Mapping[int, datetime | None]  # when each environment's newest winner was published, by id


def _seen_now(connection: Connection) -> Seen:
    """Read the newest publication of each environment from an index.

    In an environment, later publications have later times.
    """
    mine = winners.c.environment_id == environments.c.id
    newest = select(func.max(winners.c.published_at)).where(mine).scalar_subquery()
    rows = connection.execute(select(environments.c.id, newest))
    return {row[0]: row[1] for row in rows}


def _point_text() -> ColumnElement[str]:
    """Return a point as text, in the form that `read_points` reads."""
    part, *numbers = (cast(winners.c[name], Text) for name in POINT_COLUMNS)
    return sum((" " + number for number in numbers), start=part)


# Points at which a prediction keeps the engine's shipped entry: no kernel was compiled for them.
# PostgreSQL groups by no expression with parameters.
_KEPT = winners.c.compile_status == literal_column(f"'{Status.INCUMBENT.value}'")

# One row for all points that a run published together: a store has 36 winners for each such row.
_PUBLISHED = (
    select(
        problems.c.spec,
        winners.c.environment_id,
        winners.c.status,
        func.aggregate_strings(_point_text(), ",").label("points"),
        winners.c.run_id,
        winners.c.published_at,
        _KEPT.label("kept"),
    )
    .join(problems, winners.c.problem_id == problems.c.id)
    .group_by(
        problems.c.spec,
        winners.c.environment_id,
        winners.c.status,
        winners.c.run_id,
        winners.c.published_at,
        _KEPT,
    )
)
_NEWEST = (
    select(winners.c.id)
    .where(winners.c.environment_id == environments.c.id)
    .where(winners.c.status.in_([Status.OK.value, Status.PREDICTED.value]) | _KEPT)
    .order_by(winners.c.published_at.desc())
    .limit(1)
    .scalar_subquery()
    .label("newest")
)
_TIMED = (Status.OK, Status.PREDICTED)  # statuses with times; the first counts
_AT_ONCE = 100  # problems that are read to fill up a page


@dataclass(frozen=True)
class StoredSummary:
    """The stored results of a problem in an environment."""

    cursor: tuple[int, int]  # (environment id, problem id)
    environment: Environment
    problem: Problem
    points: dict[Status, int]  # the number of points by their winners' status
    oldest: datetime
    newest: datetime
    # How many times as fast as their baselines the winners are: the geometric mean over the
    # measured sizes, or over the predicted sizes if none is measured. None: nothing is timed.
    speedup: float | None
    over_without_us: bool  # whether the baseline is the server's own choice at all these sizes


@dataclass(frozen=True)
class EnvironmentSeen:
    """An environment with winners. All its problems have the same kernels, so the same family."""

    environment: Environment
    family: str  # the kind of one of its problems
    newest: datetime  # when its newest winner was published


class Lookups(Queries):
    """Reads the store. Methods are single transactions; a failing database raises UnusableStore."""

    def published(
        self, devices: Collection[str], engines: Collection[str], wanted: Collection[Problem]
    ) -> Sequence[Published]:
        """Return the current results of some problems, and the newest result of each environment.

        The current results include results of the shelf. Each engine version has current results.
        The newest result of an environment may be of any problem, and has no points. It tells which
        environment is newest.
        """
        here = environments.c.device.in_(devices) & environments.c.engine.in_(engines)
        specs = [problem.spec() for problem in wanted]
        with self._read() as connection:
            rows = connection.execute(select(environments, _NEWEST).where(here)).mappings().all()
            places = {row["id"]: read_environment(row) for row in rows}
            # By ids instead of a join, for which SQLite would read all winners of the environments.
            ids = connection.execute(select(problems.c.id).where(problems.c.spec.in_(specs)))
            mine = winners.c.problem_id.in_(ids.scalars().all())

            def read(condition: ColumnElement[bool]) -> list[Published]:
                query = _PUBLISHED.where(winners.c.environment_id.in_(places), condition)
                found = connection.execute(query).mappings()
                return [_published(row, places) for row in found if is_readable(row["spec"])]

            newest = read(winners.c.id.in_([row["newest"] for row in rows]))
            known = [replace(one, points=frozenset()) for one in newest]
            by_version: dict[str, list[Published]] = defaultdict(list)
            for one in [*published_for(devices, engines, wanted), *read(mine)]:
                by_version[one.environment.engine_version].append(one)
            return [*chain.from_iterable(map(current_points, by_version.values())), *known]

    def environments(self, devices: Collection[str]) -> Sequence[EnvironmentSeen]:
        """Return the environments that have winners, of some devices."""
        mine = winners.c.environment_id == environments.c.id
        newest = select(func.max(winners.c.published_at)).where(mine).scalar_subquery()
        family = (
            select(problems.c.family)
            .join(winners, problems.c.id == winners.c.problem_id)
            .where(mine, problems.c.family.in_(problem_names()))
            .order_by(winners.c.problem_id)  # which PostgreSQL then takes from the index
            .limit(1)
            .scalar_subquery()
        )
        query = select(*ENVIRONMENT_COLUMNS, newest.label("newest"), family.label("family"))
        query = query.where(environments.c.device.in_(devices)).order_by(environments.c.id)
        with self._read() as connection:
            rows = connection.execute(query).mappings()
            return [
                EnvironmentSeen(read_environment(row), row["family"], row["newest"])
                for row in rows
                if row["newest"] and row["family"]
            ]

    def first_runs(self, devices: Collection[str]) -> dict[Environment, datetime]:
        """Return when the oldest stored run of each environment began, of some devices."""
        place = runs.c.environment_id
        first = select(place, func.min(runs.c.created_at).label("began")).group_by(place).subquery()
        query = select(*ENVIRONMENT_COLUMNS, first.c.began)
        query = query.where(environments.c.device.in_(devices))
        with self._read() as connection:
            rows = connection.execute(query.join(first, environments.c.id == first.c[place.name]))
            return {read_environment(row): row["began"] for row in rows.mappings()}

    def stored_summaries(
        self, device: str | None, after: tuple[int, int] | None, limit: int
    ) -> Sequence[StoredSummary]:
        """Return a page of stored results, by environment and problem."""
        found: list[StoredSummary] = []
        first, skip = after or (0, 0)
        query = select(environments).where(environments.c.id >= first).order_by(environments.c.id)
        if device is not None:
            query = query.where(environments.c.device == device)
        with self._read() as connection:
            # One environment after the other: in a query for several, PostgreSQL would also read
            # the winners of all environments before them.
            for row in connection.execute(query).mappings().all():
                past = skip if row["id"] == first else 0
                found += _summaries(connection, row, past, limit - len(found))
                if len(found) == limit:
                    break
        return found

    def changed_summaries(self, seen: Seen | None) -> tuple[Sequence[StoredSummary], Seen]:
        """Return the results that were not yet stored at `seen`, and the `seen` for the next call.

        Without `seen`, all stored results are returned.
        """
        found: list[StoredSummary] = []
        with self._read() as connection:
            known, now = seen or {}, _seen_now(connection)
            changed = [one for one, newest in now.items() if known.get(one) != newest]
            query = select(environments).where(environments.c.id.in_(changed))
            for row in connection.execute(query).mappings().all():
                found += _summaries(connection, row, 0, None, known.get(row["id"]))
        return found, now

    def winner_counts(self) -> dict[int, int]:
        """Return the number of winners of each environment, by its id.

        432,000 of them took 0.12 s on SQLite, on a machine that did other work.
        """
        query = select(winners.c.environment_id, func.count())
        with self._read() as connection:
            rows = connection.execute(query.group_by(winners.c.environment_id))
            return {row[0]: row[1] for row in rows}


def _published(row: RowMapping, places: Mapping[int, Environment]) -> Published:
    return Published(
        problem=parse_problem(row["spec"]),
        environment=places[row["environment_id"]],
        status=Status(row["status"]),
        points=read_points(row["points"]),
        run_id=row["run_id"],
        published_at=row["published_at"],
        kept=bool(row["kept"]),
    )


def _mean_gains(
    connection: Connection, environment_id: int, problem_ids: Collection[int]
) -> dict[int, tuple[float, bool]]:
    """Return by problem its gain as `StoredSummary` has it, and whether its baselines run without
    us.
    """
    alone, mine = func.sum(winners.c.over_us), func.sum(winners.c.median_us)
    told = (winners.c.over == winners.c.without_us) & (winners.c.over != "")
    key = winners.c.problem_id, winners.c.status
    sizes = (
        select(
            *key,
            alone.label("alone"),
            mine.label("mine"),
            func.min(case((told, 1), else_=0)).label("told"),
        )
        .where(winners.c.environment_id == environment_id, winners.c.problem_id.in_(problem_ids))
        .where(winners.c.status.in_([status.value for status in _TIMED]))
        .group_by(*key, winners.c.batch_size, winners.c.new_tokens, winners.c.cached_tokens)
        .having(func.count(winners.c.over_us) == func.count())
        .having(func.count(winners.c.median_us) == func.count())
        .having((alone > 0) & (mine > 0))
        .subquery()
    )
    mean = func.avg(func.ln(sizes.c.alone / sizes.c.mine)).label("mean")
    query = select(sizes.c.problem_id, sizes.c.status, mean, func.min(sizes.c.told).label("told"))
    rows = connection.execute(query.group_by(sizes.c.problem_id, sizes.c.status)).all()
    # The first of the statuses counts, so it comes last.
    ordered = sorted(rows, key=lambda row: _TIMED.index(Status(row.status)), reverse=True)
    return {row.problem_id: (math.exp(row.mean), bool(row.told)) for row in ordered}


def _summaries(
    connection: Connection,
    environment: RowMapping,
    past: int,
    limit: int | None,
    since: datetime | None = None,
) -> list[StoredSummary]:
    """Return the next `limit` readable problems of an environment with an id above `past`.

    With `since`, return only the problems with a winner that was published later.
    """
    found: list[StoredSummary] = []
    place, at_once = read_environment(environment), limit
    while limit is None or len(found) < limit:
        rows = _problem_rows(connection, environment["id"], past, at_once, since)
        readable = [row for row in rows if is_readable(row["spec"])]
        gains = _mean_gains(connection, environment["id"], [row["problem_id"] for row in readable])
        found += [_summary(row, environment["id"], place, gains) for row in readable]
        if at_once is None or len(rows) < at_once:
            break
        past, at_once = rows[-1]["problem_id"], _AT_ONCE
    return found[:limit]


def _problem_rows(
    connection: Connection,
    environment_id: int,
    past: int,
    limit: int | None,
    since: datetime | None,
) -> Sequence[RowMapping]:
    """Return counts and dates of the winners of the next `limit` problems, readable or not."""
    mine = winners.c.environment_id == environment_id
    wanted = mine & (winners.c.problem_id > past)
    if since is not None:
        fresh = select(winners.c.problem_id).where(mine, winners.c.published_at > since)
        wanted &= winners.c.problem_id.in_(fresh)
    # The page is cut off before the problems' texts are joined: it reads `limit` index entries.
    page = (
        select(
            winners.c.problem_id,
            *(
                func.count().filter(winners.c.status == status.value).label(status.value)
                for status in WINNING
            ),
            func.min(winners.c.published_at).label("oldest"),
            func.max(winners.c.published_at).label("newest"),
        )
        .where(wanted)
        .group_by(winners.c.problem_id)
        .order_by(winners.c.problem_id)
        .limit(limit)
        .subquery()
    )
    query = (
        select(page, problems.c.spec)
        .join(problems, problems.c.id == page.c.problem_id)
        .order_by(page.c.problem_id)
    )
    return connection.execute(query).mappings().all()


def _summary(
    row: RowMapping,
    environment_id: int,
    place: Environment,
    gains: Mapping[int, tuple[float, bool]],
) -> StoredSummary:
    problem_id = row["problem_id"]
    return StoredSummary(
        cursor=(environment_id, problem_id),
        environment=place,
        problem=parse_problem(row["spec"]),
        points={status: row[status.value] for status in WINNING if row[status.value]},
        oldest=row["oldest"],
        newest=row["newest"],
        speedup=gains.get(problem_id, (None,))[0],
        over_without_us=problem_id in gains and gains[problem_id][1],
    )

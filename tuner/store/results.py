"""What a page shows of one result or one run."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select

from tuner.problems.points import Point, Problem
from tuner.problems.records import Winner
from tuner.problems.registry import read_part
from tuner.problems.results import Status
from tuner.store.database import Database
from tuner.store.rows import read_winner
from tuner.store.store import SELECT_WINNERS, by_point
from tuner.store.tables import POINT_COLUMNS, environments, problems, trials, winners


class ResultStore(Database):
    """Reads results. Methods are single transactions; a failing database raises UnusableStore."""

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

    def trial_counts(self, run_id: int) -> dict[Status, int]:
        """The number of a run's trials by their status."""
        query = select(trials.c.status, func.count()).where(trials.c.run_id == run_id)
        with self._read() as connection:
            rows = connection.execute(query.group_by(trials.c.status))
            return {Status(status): count for status, count in rows}

    def best_trials(self, run_id: int) -> dict[Point, float]:
        """The best time of a run so far, in microseconds, at each point that has one."""
        place = [trials.c[name] for name in POINT_COLUMNS]
        query = (
            select(*place, func.min(trials.c.median_us))
            .where(trials.c.run_id == run_id, trials.c.median_us.is_not(None))
            .group_by(*place)
        )
        with self._read() as connection:
            rows = connection.execute(query).all()
        return {Point(size, read_part(part), *rest): best for part, size, *rest, best in rows}

"""How much of a GPU a run will take, by what earlier ones took."""

from __future__ import annotations

import time
from statistics import median

from sqlalchemy import Engine, select

from tuner.jobs.job import Job
from tuner.problems.points import Problem
from tuner.problems.records import RunState
from tuner.problems.results import MeasureKind
from tuner.store.database import Database
from tuner.store.tables import environments, problems, runs
from tuner.tuning.gains import START_S, typical_gpu_s
from tuner.tuning.request import Effort

_NEWEST = 20  # runs that are looked at
_KEEP_S = 60.0  # a service need not ask again for each submission


class Estimates(Database):
    """Reads finished runs. Raises UnusableStore."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._known: dict[tuple[str, str, Effort], tuple[float, float | None]] = {}

    def of(self, job: Job) -> float | None:
        """As `gpu_s`, to a tenth, for a job; None for one that needs no GPU or has ended."""
        asked = job.request
        if not asked.needs_gpu or job.state.finished:
            return None
        found = self.gpu_s(asked.problem, asked.device, asked.effort, len(asked.points))
        return found and round(found, 1)

    def gpu_s(self, problem: Problem, device: str, effort: Effort, points: int) -> float | None:
        """The seconds that a run over so many points will need a GPU; None where nothing is known.

        The newest runs of the family on the device say so, with the same effort. Without one, the
        number of tries does, with the time of a try on an H200.
        """
        kind = problem.family, device, effort
        until, a_point = self._known.get(kind, (0.0, None))
        if time.monotonic() >= until:
            a_point = self._seconds_a_point(*kind)
            self._known[kind] = time.monotonic() + _KEEP_S, a_point
        return typical_gpu_s(points, effort) if a_point is None else START_S + points * a_point

    def _seconds_a_point(self, family: str, device: str, effort: Effort) -> float | None:
        query = (
            select(runs.c.points, runs.c.totals)
            .join(problems, runs.c.problem_id == problems.c.id)
            .join(environments, runs.c.environment_id == environments.c.id)
            .where(
                problems.c.family == family,
                environments.c.device == device,
                runs.c.measure == MeasureKind.GPU.value,
                runs.c.effort == effort.value,
                runs.c.state == RunState.DONE.value,
            )
            .order_by(runs.c.id.desc())
            .limit(_NEWEST)
        )
        with self._read() as connection:
            found = connection.execute(query).all()
        taken = [
            max(0.0, totals["extra"]["gpu_s"] - START_S) / len(tuned)
            for tuned, totals in found
            if tuned and totals
        ]
        return median(taken) if taken else None

"""Compare two nights.

A winner is replaced by the next winner of its environment, so the store does not keep a night's
publications. It keeps each run with its trials, and the jobs say which run was a night's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

from sqlalchemy import Row, func, select

from tuner.errors import BadInput
from tuner.problems.registry import parts
from tuner.render import folded, gain_text
from tuner.store.database import Database, Queries
from tuner.store.nights import NightStore, in_parts
from tuner.store.tables import POINT_COLUMNS, environments, jobs, runs, trials
from tuner.tuning.gains import mean_gain

Place = tuple[str, str, str, str]  # device, problem, engine, source of the times
Times = Mapping[str, tuple[Mapping[str, Any], float]]  # by size: configuration, microseconds


@dataclass(frozen=True)
class ProblemDiff:
    """A problem of two nights. Gains are geometric means over the sizes that both timed."""

    device: str
    problem: str
    change: str  # "only before", "only now", "changed", "the same" or "not comparable"
    states: tuple[str, str]  # of the jobs; empty if a night had none
    versions: tuple[str, str]  # of the engine and Triton; empty if nothing ran
    sizes: int  # that both nights timed
    changed: tuple[str, ...]  # of these, the sizes whose fastest configuration has changed
    faster: float | None  # old times over new times

    def __str__(self) -> str:
        said = f"{self.change}: {self.problem} on {self.device}"
        before, now = (state or "no job" for state in self.states)
        said += f"\n    {before} before, {now} now"
        if all(self.versions) and self.versions[0] != self.versions[1]:
            said += f"; {self.versions[0]} before, {self.versions[1]} now"
        if self.changed:
            said += f"\n    another configuration at {len(self.changed)} of {self.sizes} sizes: "
            said += " ".join(self.changed)
        if self.faster is not None:
            said += f"\n    the fastest trials: {gain_text(self.faster)} as fast as before"
        return said


@dataclass(frozen=True)
class NightDiff:
    """Two nights of a schedule."""

    before: date
    now: date
    problems: tuple[ProblemDiff, ...]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> NightDiff:
        """Read the object that `as_json` makes. Raises KeyError, TypeError or ValueError."""
        before, now = (date.fromisoformat(values[name]) for name in ("before", "now"))
        return cls(before, now, tuple(ProblemDiff(**one) for one in values["problems"]))

    def as_json(self) -> dict[str, Any]:
        nights = {"before": self.before.isoformat(), "now": self.now.isoformat()}
        return {**nights, "problems": [asdict(one) for one in self.problems]}

    def as_text(self) -> str:
        """Say which problems differ, and count the others."""
        others = [one for one in self.problems if one.change != "the same"]
        counts = Counter(one.change for one in self.problems)
        told = ", ".join(f"{n} {change}" for change, n in sorted(counts.items())) or "no jobs"
        head = f"{self.before} and {self.now}: {told}"
        return folded("\n".join([head, *map(str, others)]))


@dataclass(frozen=True)
class _NightJob:
    """The last job of a night for a problem."""

    state: str
    version: str
    times: Times


def diff_nights(store: Database, schedule: str, before: date, now: date) -> NightDiff:
    """Compare two finished nights. Raises BadInput for a day without a night."""
    nights = NightStore(store)
    old, new = (_NightJobs(store).jobs_of(nights, schedule, day) for day in (before, now))
    places = sorted({*old, *new})
    return NightDiff(before, now, tuple(_diff(one, old.get(one), new.get(one)) for one in places))


class _NightJobs(Queries):
    """Reads the jobs of a night with their trials."""

    def jobs_of(self, nights: NightStore, schedule: str, day: date) -> dict[Place, _NightJob]:
        night = nights.night(schedule, day)
        if night is None or night.summary is None or "submitted" not in night.summary:
            raise BadInput(
                f"there is no finished night of {day}",
                cli=": `tuner nightly run --list` lists the nights",
                api=": GET /v1/nights lists the nights",
            )
        ids = [*night.summary["submitted"], *night.summary["waiting"]]
        rows = self._rows(ids)
        times = self._times([row.run_id for row in rows if row.run_id is not None])
        return {
            _place(row): _NightJob(row.state, _version(row), times.get(row.run_id, {}))
            for row in rows
        }

    def _rows(self, ids: Sequence[str]) -> list[Row[Any]]:
        """Return the jobs in the order in which they were posted, with the environments of their
        runs.
        """
        query = (
            select(
                *(jobs.c[name] for name in ("device", "state", "run_id", "request")),
                *(environments.c[name] for name in ("engine", "engine_version", "triton")),
            )
            .outerjoin(runs, runs.c.id == jobs.c.run_id)
            .outerjoin(environments, environments.c.id == runs.c.environment_id)
            .order_by(jobs.c.created_at, jobs.c.id)
        )
        with self._read() as connection:
            return [
                row
                for some in in_parts(ids)
                for row in connection.execute(query.where(jobs.c.id.in_(some)))
            ]

    def _times(self, run_ids: Sequence[int]) -> dict[int, dict[str, tuple[Any, float]]]:
        """Return the fastest trial of each size of each run."""
        point = [trials.c[name] for name in POINT_COLUMNS]
        place = func.row_number().over(
            partition_by=[trials.c.run_id, *point], order_by=[trials.c.median_us, trials.c.id]
        )
        columns = trials.c.run_id, *point, trials.c.config, trials.c.backend, trials.c.median_us
        found: dict[int, dict[str, tuple[Any, float]]] = {}
        with self._read() as connection:
            for some in in_parts(run_ids):
                mine = trials.c.run_id.in_(some) & trials.c.median_us.is_not(None)
                ours = mine & (trials.c.backend == "triton")
                ranked = select(*columns, place.label("place")).where(ours).subquery()
                rows = connection.execute(select(ranked).where(ranked.c.place == 1)).all()
                for row in sorted(rows, key=_in_order):
                    found.setdefault(row.run_id, {})[_size(row)] = row.config, row.median_us
        return found


def _place(row: Row[Any]) -> Place:
    asked = row.request
    return row.device, asked["problem"], asked["engine"].partition("==")[0], asked["measure"]


def _version(row: Row[Any]) -> str:
    if row.engine_version is None:
        return ""
    return f"{row.engine} {row.engine_version} with Triton {row.triton}"


def _in_order(row: Row[Any]) -> tuple[int, ...]:
    """Return the place of a size: parts in the order of their launches."""
    order = [part.value for part in parts()].index(row.part)
    return row.batch_size, row.new_tokens, row.cached_tokens, order


def _size(row: Row[Any]) -> str:
    words = [f"{row.part}", f"M={row.batch_size}"]
    words += [f"new={row.new_tokens}"] if row.new_tokens else []
    words += [f"cached={row.cached_tokens}"] if row.cached_tokens else []
    return ",".join(words)


def _diff(place: Place, old: _NightJob | None, new: _NightJob | None) -> ProblemDiff:
    before, now = old.times if old else {}, new.times if new else {}
    both = [size for size in before if size in now]
    changed = tuple(size for size in both if before[size][0] != now[size][0])
    if old is None or new is None:
        change = "only now" if old is None else "only before"
    elif not both:
        change = "not comparable"
    else:
        change = "changed" if changed else "the same"
    return ProblemDiff(
        device=place[0],
        problem=place[1],
        change=change,
        states=(old.state if old else "", new.state if new else ""),
        versions=(old.version if old else "", new.version if new else ""),
        sizes=len(both),
        changed=changed,
        faster=mean_gain(before[size][1] / now[size][1] for size in both if now[size][1]),
    )

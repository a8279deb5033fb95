"""How far a job's run has come: what was tried, at which pace, and what the engine's own take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from api.state import Api
from tuner.jobs.job import PLANNED, Job, JobEvent, JobState
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.registry import read_part
from tuner.problems.results import Status

_EVENTS = 200  # the newest ones say the pace
_UNKNOWN = ("to_try", "left_s", "tried_a_minute", "timed_a_minute")  # before a run begins
_LEAST = timedelta(seconds=2)  # before that, a pace says nothing


@dataclass(frozen=True)
class Pace:
    """Trials a minute."""

    tried: float
    timed: float


def progress_of(job: Job, api: Api) -> dict[str, Any]:
    """The fields of `ProgressOut`."""
    if job.run_id is None:
        return {"trials": {}, "best": [], "incumbents": [], **dict.fromkeys(_UNKNOWN)}
    counts, best = api.results.trial_counts(job.run_id), api.results.best_trials(job.run_id)
    planned = api.jobs.latest_events(job.id, 1, PLANNED)
    stalled = api.fleet.reasons().stalled(job)
    pace = None if stalled else pace_of(api.jobs.latest_events(job.id, _EVENTS))
    to_try = planned[0].data["to_try"] if planned else None
    left_s = None
    if pace and pace.tried and to_try is not None and not job.state.finished:
        left_s = 60 * max(0, to_try - sum(counts.values())) / pace.tried
    return {
        "trials": {status.value: count for status, count in counts.items()},
        "best": [
            {**point.as_json(), "point": str(point), "best_us": best[point]}
            for point in sorted(best)
        ],
        "incumbents": _incumbents(job.run_id, planned[0].data, api) if planned else [],
        "to_try": to_try,
        "left_s": left_s,
        "tried_a_minute": pace and pace.tried,
        "timed_a_minute": pace and pace.timed,
    }


def pace_of(events: Sequence[JobEvent]) -> Pace | None:
    """The pace since the newest attempt began, or since the first of the events."""
    began = max((n for n, one in enumerate(events) if _begins(one)), default=0)
    trials = [one for one in events[began:] if one.kind == "trials"]
    if not trials:
        return None
    passed = trials[-1].at - events[began].at
    if passed < _LEAST:
        return None
    # The first of the events, if it has trials, only says when they were stored.
    counted = [one.data for one in trials if one is not events[began]]
    tried = sum(data["tried"] for data in counted)
    timed = sum(_timed(data.get("statuses", {})) for data in counted)
    return Pace(*(60 * number / passed.total_seconds() for number in (tried, timed)))


def _begins(event: JobEvent) -> bool:
    return event.kind == JobState.RUNNING.value


def _timed(statuses: Mapping[str, int]) -> int:
    return sum(statuses.get(status.value, 0) for status in (Status.OK, Status.PREDICTED))


def _incumbents(run_id: int, planned: Mapping[str, Any], api: Api) -> list[dict[str, Any]]:
    """For each point to tune, the times so far of the engine's own configurations."""
    points = [(one, _point(one)) for one in planned["incumbents"]]
    candidates = {
        Candidate(point, Config(config))
        for one, point in points
        for config in one["configs"].values()
    }
    times = api.results.times_of(run_id, candidates)
    return [
        {
            **{name: value for name, value in one.items() if name != "configs"},
            "times_us": {
                name: times.get(Candidate(point, Config(config)))
                for name, config in one["configs"].items()
            },
        }
        for one, point in points
    ]


def _point(said: Mapping[str, Any]) -> Point:
    part = read_part(said.get("gemm") or said["part"])
    tokens = said.get("new_tokens") or 0, said.get("cached_tokens") or 0
    return Point(said["batch_size"], part, *tokens)

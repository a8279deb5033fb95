"""The nightly round: compares the watch list with the store, and posts jobs for the difference."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from enum import Enum
from functools import lru_cache
from typing import Any

from tuner.engines.engine import find_engine, kernel_hash
from tuner.errors import TunerError, UnknownEngine, UnsupportedKernel
from tuner.jobs.job import JobRequest
from tuner.jobs.targets import engine_version_here
from tuner.problems.records import Published
from tuner.problems.registry import family_of
from tuner.problems.results import MeasureKind, Status
from tuner.store import JobStore, NightStore, Store
from tuner.store.database import utc_now
from tuner.store.lookups import Lookups
from workers.queue import Announcer
from workers.settings import Settings
from workers.watches import Unresolved, WatchList, read_watch, read_watch_list

SCHEDULE = "nightly"
_OF_KERNELS = ("engine_version", "kernel_hash", "triton")
_OF_GPU = ("torch", "cuda", "driver")
NOT_FRESH = timedelta(0)  # no finished job answers the round's requests: they are to run again


class WatchState(str, Enum):
    """How up to date a watched request is in the store."""

    TUNED = "tuned"
    MISSING = "missing"
    STALE = "stale"
    ERROR = "error"  # no job can be made of it: the engine's kernels cannot be lifted


@dataclass(frozen=True)
class WatchStatus:
    """A watched request, its state, and the reason for it."""

    request: JobRequest
    standing: WatchState
    why: str = ""
    tuned_at: datetime | None = None  # the time of its oldest result


@dataclass(frozen=True)
class NightPlan:
    """What a nightly round will do."""

    watched: Sequence[WatchStatus]
    revalidate: Sequence[JobRequest]
    errors: Sequence[tuple[str, str]]  # what was watched, and why no job can be made of it

    def requests(self) -> list[JobRequest]:
        new = [one.request for one in self.watched if one.standing is not WatchState.TUNED]
        return [*new, *self.revalidate]

    def summary(self) -> dict[str, Any]:
        """The plan as JSON. `submitted` and `waiting` are added when the jobs are posted."""
        return {
            "watched": len(self.watched),
            **{
                standing.value: [
                    {**_named(one.request), "why": one.why}
                    for one in self.watched
                    if one.standing is standing
                ]
                for standing in (WatchState.MISSING, WatchState.STALE)
            },
            "revalidated": [_named(request) for request in self.revalidate],
            "errors": [{"what": what, "why": why} for what, why in self.errors],
        }


def run_nightly(
    settings: Settings, *, dry_run: bool = False, today: date | None = None
) -> Mapping[str, Any]:
    """Do tonight's round and return its summary; `{"skipped": ...}` where another process did it.

    A dry run writes nothing. Raises MalformedWatchList or UnusableStore.
    """
    day = today or utc_now().date()
    with Store.open(settings.database_url) as store:
        nights = NightStore.sharing(store)
        watch_list = watch_list_of(settings, nights)
        if dry_run:
            return _dated(plan(watch_list, store, day).summary(), day)
        if not nights.begin(SCHEDULE, day):
            return _dated({"skipped": "another process has done it, or is doing it"}, day)
        todo = plan(watch_list, store, day)
        summary = _dated({**todo.summary(), **_submit(todo, store, Announcer(settings))}, day)
        nights.finish(SCHEDULE, day, summary)
        return summary


def last_night(settings: Settings) -> Mapping[str, Any] | None:
    """The summary of the newest round; None before the first round."""
    with NightStore.open(settings.database_url) as nights:
        night = nights.last(SCHEDULE)
    return None if night is None else night.summary or _dated({}, night.date)


def watch_list_of(settings: Settings, nights: NightStore) -> WatchList:
    """The watches of the file, and the ones that were added over the API."""
    listed = read_watch_list(settings.nightly) if settings.nightly else WatchList(())
    added = [read_watch(row.watch, f"watch {row.id}") for row in nights.watches()]
    return replace(listed, watches=(*listed.watches, *added))


def plan(watch_list: WatchList, store: Store, day: date) -> NightPlan:
    """Compare the watch list with the store. Writes nothing."""
    found: dict[str, JobRequest] = {}
    errors = []
    for watch in watch_list.watches:
        for request in watch.requests():
            if isinstance(request, Unresolved):
                errors.append((f"{request.model} on {request.device}", str(request.error)))
            else:
                found[request.key] = request
    judged = watch_statuses(found.values(), Lookups.sharing(store))
    errors += [
        (f"{one.request.problem.spec()} on {one.request.device}", one.why)
        for one in judged
        if one.standing is WatchState.ERROR
    ]
    judged = [one for one in judged if one.standing is not WatchState.ERROR]
    return NightPlan(judged, _oldest(judged, watch_list.revalidate, day), errors)


def watch_statuses(requests: Collection[JobRequest], lookups: Lookups) -> list[WatchStatus]:
    """The state of each request in the store."""
    found = lookups.published(
        {request.device for request in requests},
        {_engine(request) for request in requests},
        {request.problem for request in requests},
    )
    stored = {place: _answers(found, *place) for place in map(_result_source, requests)}
    return [_judge(request, stored[_result_source(request)]) for request in requests]


def _engine(request: JobRequest) -> str:
    return request.engine.partition("==")[0].strip()


def _result_source(request: JobRequest) -> tuple[str, str, str]:
    return request.device, _engine(request), request.measure.partition(":")[0]


def _answers(found: Iterable[Published], device: str, engine: str, measure: str) -> list[Published]:
    """The results that answer such requests. Measured results answer requests to predict too."""
    here = [
        one for one in found if (one.environment.device, one.environment.engine) == (device, engine)
    ]
    if measure == MeasureKind.PREDICT.value:
        return [one for one in here if one.status in (Status.PREDICTED, Status.OK)]
    # Replays are told by the driver in their environment: they are no results of the GPU.
    replayed = measure == MeasureKind.REPLAY.value
    return [
        one
        for one in here
        if one.status is Status.OK and one.environment.driver.startswith("recording") == replayed
    ]


def _judge(request: JobRequest, stored: Sequence[Published]) -> WatchStatus:
    kernels = _kernels_now(request)
    if kernels.error:
        return WatchStatus(request, WatchState.ERROR, kernels.error)
    stored = [one for one in stored if type(one.problem) is type(request.problem)]  # same kernels
    mine = {point: one for one in stored if one.problem == request.problem for point in one.points}
    wanted = request.points or set(mine)  # a replay tunes the points of its recording
    lacking = wanted - set(mine)
    if lacking or not wanted:
        why = f"{len(lacking) or 'all'} of {len(wanted) or 'all'} points have no result"
        return WatchStatus(request, WatchState.MISSING, why)
    used = {mine[point] for point in wanted}
    if stale := _why_stale(request, used, stored, kernels):
        return WatchStatus(request, WatchState.STALE, stale)
    return WatchStatus(request, WatchState.TUNED, tuned_at=min(one.published_at for one in used))


def _why_stale(
    request: JobRequest,
    used: Iterable[Published],
    stored: Sequence[Published],
    kernels: _Kernels,
) -> str | None:
    """What has changed since the results: the engine here, or the device at its newest result."""
    newest = max(stored, key=lambda one: (one.published_at, one.run_id)).environment
    changes = {"engine_version": kernels.version, "kernel_hash": kernels.hash}
    now = replace(newest, **{name: value for name, value in changes.items() if value})
    for one in used:
        for name in _OF_KERNELS + (_OF_GPU if request.needs_gpu else ()):
            old, new = getattr(one.environment, name), getattr(now, name)
            if old != new:
                return f"{name} {old[:12]} is now {new[:12]}"
    return None


@dataclass(frozen=True)
class _Kernels:
    """An engine's kernels on this machine. None: it is not here, the newest results tell instead.

    `error` says why the kernels cannot be lifted from the engine's sources.
    """

    version: str | None
    hash: str | None = None
    error: str = ""


def _kernels_now(request: JobRequest) -> _Kernels:
    version = engine_version_here(request.engine)
    family = family_of(request.problem).name
    return _kernels(request.engine, version, family, int(time.monotonic() // 60))


@lru_cache(maxsize=64)
def _kernels(spec: str, version: str | None, family: str, minute: int) -> _Kernels:
    """At most a minute old: a worker runs for weeks, while the sources may change in place."""
    try:
        found = kernel_hash(find_engine(spec), family)
    except UnknownEngine:
        return _Kernels(version)
    except UnsupportedKernel as error:
        return _Kernels(version, error=str(error))
    return _Kernels(version, found)


def _oldest(judged: Sequence[WatchStatus], count: int, day: date) -> list[JobRequest]:
    by_device: dict[str, list[WatchStatus]] = defaultdict(list)
    for one in judged:
        if one.standing is WatchState.TUNED and not one.request.measure.startswith("replay:"):
            by_device[one.request.device].append(one)
    oldest = [
        one.request
        for ones in by_device.values()
        for one in sorted(ones, key=lambda one: (one.tuned_at, one.request.key))[:count]
    ]
    # A new seed makes a new run, which measures again instead of resuming the old one.
    return [replace(request, seed=day.toordinal()) for request in oldest]


def _submit(todo: NightPlan, store: Store, announcer: Announcer) -> dict[str, Any]:
    jobs = JobStore.sharing(store)
    submitted: list[str] = []
    waiting: list[str] = []
    errors: list[dict[str, str]] = []
    for request in todo.requests():
        try:
            answer = jobs.submit(request, client=SCHEDULE, fresh=NOT_FRESH)
        except TunerError as error:
            errors.append({"what": request.problem.spec(), "why": str(error)})
            continue
        if answer.created:
            announcer.announce(answer.job)
        (submitted if answer.created else waiting).append(answer.job.id)
    return {"submitted": submitted, "waiting": waiting, "not_submitted": errors}


def _named(request: JobRequest) -> dict[str, Any]:
    return {
        "model": request.model,
        "problem": request.problem.spec(),
        "device": request.device,
        "engine": request.engine,
        "measure": request.measure,
    }


def _dated(summary: Mapping[str, Any], day: date) -> dict[str, Any]:
    return {"schedule": SCHEDULE, "date": day.isoformat(), **summary}

"""The nightly round: compares the watch list with the store, and posts jobs for the difference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

from tuner.errors import TunerError
from tuner.jobs.job import JobRequest
from tuner.store import JobStore, NightStore, Store
from tuner.store.database import utc_now
from tuner.store.lookups import Lookups
from workers.coverage import WatchState, WatchStatus, watch_statuses
from workers.queue import Announcer
from workers.settings import Settings
from workers.watches import Unresolved, WatchList, read_watch, read_watch_list

SCHEDULE = "nightly"
NOT_FRESH = timedelta(0)  # no finished job answers the round's requests: they are to run again


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

"""Every night: what is watched against what is stored, and jobs for the difference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from enum import Enum
from functools import cache
from typing import Any, Protocol

from tuner.engines import find_engine
from tuner.errors import TunerError, UnknownEngine
from tuner.jobs import JobRequest
from tuner.kernels.fused_moe import lift_fused_moe
from tuner.problems import BATCH_SIZES, Point
from tuner.results import Environment, MeasureKind, Status
from tuner.store import JobStore, NightStore, Store, Winner
from tuner.store.database import utc_now
from workers.queue import Announcer
from workers.settings import Settings
from workers.watches import WatchList, engine_version, read_watch, read_watch_list

SCHEDULE = "nightly"
_OF_KERNELS = ("engine_version", "kernel_hash", "triton")
_OF_GPU = ("torch", "cuda", "driver")
NOT_FRESH = timedelta(0)  # the plan knows better than a job's age what must be done again


class Standing(str, Enum):
    """How a watched key stands."""

    TUNED = "tuned"
    MISSING = "missing"
    STALE = "stale"


@dataclass(frozen=True)
class Judged:
    """A watched request, how it stands, and why."""

    request: JobRequest
    standing: Standing
    why: str = ""
    tuned_at: datetime | None = None  # the oldest of its results


@dataclass(frozen=True)
class Plan:
    """What a night is to do."""

    watched: Sequence[Judged]
    revalidate: Sequence[JobRequest]
    errors: Sequence[tuple[str, str]]

    def requests(self) -> list[JobRequest]:
        new = [one.request for one in self.watched if one.standing is not Standing.TUNED]
        return [*new, *self.revalidate]

    def summary(self) -> dict[str, Any]:
        """As JSON; `submitted` and `waiting` come when the jobs are posted."""
        return {
            "watched": len(self.watched),
            **{
                standing.value: [
                    {**_named(one.request), "why": one.why}
                    for one in self.watched
                    if one.standing is standing
                ]
                for standing in (Standing.MISSING, Standing.STALE)
            },
            "revalidated": [_named(request) for request in self.revalidate],
            "errors": [{"what": what, "why": why} for what, why in self.errors],
        }


def run_nightly(
    settings: Settings, *, dry_run: bool = False, today: date | None = None
) -> Mapping[str, Any]:
    """Tonight's round: its summary. `{"skipped": ...}` where another process has done it.

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
    """The newest round's summary; None before the first."""
    with NightStore.open(settings.database_url) as nights:
        night = nights.last(SCHEDULE)
    return None if night is None else night.summary or _dated({}, night.date)


def watch_list_of(settings: Settings, nights: NightStore) -> WatchList:
    """The file's watches, and those added over the API."""
    listed = read_watch_list(settings.nightly) if settings.nightly else WatchList(())
    added = [read_watch(row.watch, f"watch {row.id}") for row in nights.watches()]
    return replace(listed, watches=(*listed.watches, *added))


def plan(watch_list: WatchList, store: Store, day: date) -> Plan:
    """Compare what is watched with what is stored; writes nothing."""
    found: dict[str, JobRequest] = {}
    errors = []
    for watch in watch_list.watches:
        for request in watch.requests():
            if isinstance(request, JobRequest):
                found[request.key] = request
            else:
                errors.append(request)
    judged = judge(found.values(), store)
    return Plan(judged, _oldest(judged, watch_list.revalidate, day), errors)


class HasWinners(Protocol):
    """A store, or a part of one that has all winners of the problems that are judged."""

    def winners(self, *, device: str, engine: str) -> Sequence[Winner]: ...


def judge(requests: Iterable[JobRequest], store: HasWinners) -> list[Judged]:
    """How each request stands in the store."""
    stored: dict[tuple[str, str, str], list[Winner]] = {}
    judged = []
    for request in requests:
        engine = request.engine.partition("==")[0].strip()
        place = request.device, engine, request.measure.partition(":")[0]
        if place not in stored:
            stored[place] = _winners(store, *place)
        judged.append(_judge(request, stored[place]))
    return judged


def _winners(store: HasWinners, device: str, engine: str, measure: str) -> list[Winner]:
    """What counts as an answer: for a prediction, a measured result as well."""
    winners = store.winners(device=device, engine=engine)
    if measure == MeasureKind.PREDICT.value:
        return [w for w in winners if w.entry.status in (Status.PREDICTED, Status.OK)]
    # A replay's driver says that it is one: it stands for no GPU.
    replayed = measure == MeasureKind.REPLAY.value
    return [
        winner
        for winner in winners
        if winner.entry.status is Status.OK
        and winner.environment.driver.startswith("recording") == replayed
    ]


def _judge(request: JobRequest, stored: Sequence[Winner]) -> Judged:
    sizes = request.batch_sizes or BATCH_SIZES
    if request.batch_sizes is None and request.measure.startswith("replay:"):
        sizes = ()  # the recording's own: whatever it has was tuned
    stored = [w for w in stored if type(w.problem) is type(request.problem)]  # the same kernels
    mine = {w.entry.point: w for w in stored if w.problem == request.problem}
    wanted = {Point(size, gemm) for size in sizes for gemm in request.gemms} or set(mine)
    lacking = sorted(wanted - set(mine))
    if lacking or not wanted:
        why = f"{len(lacking) or 'all'} of {len(wanted) or 'all'} points have no result"
        return Judged(request, Standing.MISSING, why)
    used = [mine[point] for point in wanted]
    if stale := _why_stale(request, used, stored):
        return Judged(request, Standing.STALE, stale)
    return Judged(request, Standing.TUNED, tuned_at=min(w.published_at for w in used))


def _why_stale(request: JobRequest, used: Sequence[Winner], stored: Sequence[Winner]) -> str | None:
    """What has changed since: on the engine here, and on the device as last seen by a worker."""
    newest = max(stored, key=lambda winner: (winner.published_at, winner.run_id)).environment
    now = _environment_now(newest, request.engine)
    for winner in used:
        for name in _OF_KERNELS + (_OF_GPU if request.needs_gpu else ()):
            old, new = getattr(winner.environment, name), getattr(now, name)
            if old != new:
                return f"{name} {old[:12]} is now {new[:12]}"
    return None


def _environment_now(newest: Environment, spec: str) -> Environment:
    changes = {"engine_version": engine_version(spec), "kernel_hash": _kernel_hash(spec)}
    return replace(newest, **{name: value for name, value in changes.items() if value})


@cache
def _kernel_hash(spec: str) -> str | None:
    try:
        return lift_fused_moe(find_engine(spec)).lifted.hash
    except UnknownEngine:
        return None  # not on this machine: what the workers last saw must do


def _oldest(judged: Sequence[Judged], count: int, day: date) -> list[JobRequest]:
    by_device: dict[str, list[Judged]] = defaultdict(list)
    for one in judged:
        if one.standing is Standing.TUNED and not one.request.measure.startswith("replay:"):
            by_device[one.request.device].append(one)
    oldest = [
        one.request
        for ones in by_device.values()
        for one in sorted(ones, key=lambda one: (one.tuned_at, one.request.key))[:count]
    ]
    # Another seed is another run, which measures anew instead of resuming the old one.
    return [replace(request, seed=day.toordinal()) for request in oldest]


def _submit(todo: Plan, store: Store, announcer: Announcer) -> dict[str, Any]:
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

"""Say which stored results and which watched requests are tuned, stale or missing.

A device's newest environment has the highest engine version, and among several of that version the
newest result. Results of another environment are stale. A watched request is judged as a job would
renew it: by the engine version that it would get, and on several hosts as `_Results` says.
"""

from __future__ import annotations

import socket
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import Any

from tuner.devices.table import find_device
from tuner.engines.engine import find_engine, kernel_hash, parse_spec, version_order
from tuner.errors import UnknownEngine, UnsupportedKernel
from tuner.jobs.job import JobRequest
from tuner.jobs.workers import JobRequirements, WorkerStatus, engine_version_here
from tuner.problems.points import Problem
from tuner.problems.registry import family_named, family_of, find_family
from tuner.problems.results import SHELF_RUN, Environment, MeasureKind, Published, Status
from tuner.store.lookups import EnvironmentSeen, Lookups, StoredSummary
from tuner.store.workers import WorkerStore
from tuner.tuning.gains import TRITONS_OWN, WITHOUT_US
from workers.watches import LeftAlone, Unresolved, Watch, Watched, WatchList

# Fields of an environment whose changes make results stale.
OF_KERNELS = ("engine_version", "kernel_hash", "triton")
OF_GPU = ("torch", "cuda", "driver", "backends")
FROM_SHELF = "from the shelf"  # why a request is tuned for which the store has nothing
PREDICTED, RECORDED, GPU = "", "recording", "gpu"  # sources of times


class WatchState(str, Enum):
    """The state of a watched request's results in the store."""

    TUNED = "tuned"
    MISSING = "missing"
    STALE = "stale"
    ERROR = "error"  # no job can be made of it: the engine's kernels cannot be lifted
    LEFT_OUT = "left_out"  # of a watched model: servers read no file for it


@dataclass(frozen=True)
class WatchStatus:
    """A watched request, its state, and the reason for it."""

    request: JobRequest
    standing: WatchState
    why: str = ""
    tuned_at: datetime | None = None  # the time of its oldest result
    # The engine version of this machine, if the state is judged by it; a job is for it too.
    here: str | None = None


def watch_statuses(
    requests: Collection[JobRequest], lookups: Lookups, workers: Sequence[WorkerStatus]
) -> list[WatchStatus]:
    """Return the state of each request in the store, as the known workers would renew it."""
    devices = {request.device for request in requests}
    found = lookups.published(
        devices,
        {parse_spec(request.engine)[0] for request in requests},
        {request.problem for request in requests},
    )
    places = set(map(_result_source, requests))
    mixed = {place for place in places if len(place[0].hosts(workers)) > 1}
    first_runs = lookups.first_runs(devices) if mixed else {}
    stored = {
        place: _Results(
            _answers(found, *place),
            {one.host for one in place[0].takers(workers)},
            first_runs if place in mixed else {},
        )
        for place in places
    }
    return [_judge(request, stored[_result_source(request)]) for request in requests]


def source_of(environment: Environment) -> str:
    """Return the source of an environment's times: recordings and predictions have their own."""
    first = environment.driver.partition(" ")[0]
    return first if first in (PREDICTED, RECORDED) else GPU


class _Results:
    """The results that answer requests for one device, engine and kind of problem.

    Hosts may differ, for example in their drivers, and any of them may take a job, also by day a
    host that is off at night. So on several hosts the newest environment is the last to be seen
    first, by `first_runs`, and a result that was published since then is as fresh as a job could
    make it. `hosts` are the takers' alone.
    """

    def __init__(
        self,
        results: Iterable[Published],
        hosts: Collection[str],
        first_runs: Mapping[Environment, datetime],
    ) -> None:
        self.elsewhere = not set(hosts) <= {socket.gethostname()}
        self.first_runs = first_runs  # empty on one host
        self.of: dict[Problem, list[Published]] = defaultdict(list)  # the newest last
        self._newest: dict[str, Published] = {}  # by engine version
        # Results of the shelf come first: they say nothing of the cards here.
        order = sorted(results, key=lambda one: (one.published_at, one.run_id))
        for one in sorted(order, key=lambda one: one.run_id != SHELF_RUN):
            self.of[one.problem].append(one)
            known = self._newest.setdefault(one.environment.engine_version, one)
            if self._since(one.environment) >= self._since(known.environment):
                self._newest[one.environment.engine_version] = one

    def is_renewed(self, one: Published, now: Environment) -> bool:
        """Say whether a result is of the same version as `now`, and was published since `now` was
        first seen.
        """
        same = one.environment.engine_version == now.engine_version and one.run_id != SHELF_RUN
        return same and now in self.first_runs and one.published_at >= self.first_runs[now]

    def _since(self, environment: Environment) -> datetime:
        return self.first_runs.get(environment, _NEVER)

    def newest(self, version: str | None) -> Environment | None:
        """Return the newest environment, with that engine version if a result has it."""
        if version not in self._newest:
            version = max(self._newest, key=version_order, default=None)
        return None if version is None else self._newest[version].environment


_NEVER = datetime.min.replace(tzinfo=timezone.utc)


def _result_source(request: JobRequest) -> tuple[JobRequirements, str, type[Problem]]:
    # Problems of one type have the same kernels.
    return JobRequirements.of(request), request.measure.partition(":")[0], type(request.problem)


def _answers(
    found: Iterable[Published], need: JobRequirements, measure: str, kind: type[Problem]
) -> list[Published]:
    """Return the results that answer such requests. Measured results answer predictions too.

    The shelf has results of several releases: they answer for the release of the jobs alone.
    """
    release = engine_version_here(need.engine)
    wanted = (need.device, parse_spec(need.engine)[0], kind)
    here = [
        one
        for one in found
        if (one.environment.device, one.environment.engine, type(one.problem)) == wanted
        and (one.run_id != SHELF_RUN or one.environment.engine_version == release)
    ]
    if measure == MeasureKind.PREDICT.value:
        answers = (Status.PREDICTED, Status.OK)
        return [one for one in here if one.status in answers or _kept_by_prediction(one)]
    replayed = measure == MeasureKind.REPLAY.value
    return [
        one
        for one in here
        if one.status is Status.OK and (source_of(one.environment) == RECORDED) == replayed
    ]


def _kept_by_prediction(one: Published) -> bool:
    return one.kept and source_of(one.environment) == PREDICTED


def _judge(request: JobRequest, stored: _Results) -> WatchStatus:
    kernels = _kernels_now(request)
    if kernels.error:
        return WatchStatus(request, WatchState.ERROR, kernels.error)
    if stored.elsewhere:  # a host may have other sources of the same version
        kernels = replace(kernels, hash=None)
    now = _environment_now(request, stored, kernels)
    version = now and now.engine_version
    here = kernels.version if version in (None, kernels.version) else None
    mine = sorted(
        stored.of[request.problem],
        key=lambda one: (
            one.environment.engine_version == version,
            version_order(one.environment.engine_version),
        ),
    )
    # A replay tunes the points of its recording.
    wanted = request.points or frozenset().union(*(one.points for one in mine))
    lacking, used = set(wanted), []
    for one in reversed(mine):  # the best answers first
        if found := lacking & one.points:
            used.append(one)
            lacking -= found
    if lacking or not wanted or now is None:
        predicted = request.measure == MeasureKind.PREDICT.value
        lack = "have no result" if predicted else "are not measured"
        why = f"{len(lacking) or 'all'} of {len(wanted) or 'all'} points {lack}"
        return WatchStatus(request, WatchState.MISSING, why, here=here)
    for one in used:
        if stored.is_renewed(one, now):
            continue
        of_gpu = request.needs_gpu and one.run_id != SHELF_RUN
        for name in OF_KERNELS + (OF_GPU if of_gpu else ()):
            old, new = getattr(one.environment, name), getattr(now, name)
            if old != new:
                why = f"{name} {old[:12]} is now {new[:12]}"
                return WatchStatus(request, WatchState.STALE, why, here=here)
    why = FROM_SHELF if any(one.run_id == SHELF_RUN for one in used) else ""
    tuned_at = min(one.published_at for one in used)
    return WatchStatus(request, WatchState.TUNED, why, tuned_at, here)


def _environment_now(
    request: JobRequest, stored: _Results, kernels: _Kernels
) -> Environment | None:
    """Return the environment that results should have been made in; None if nothing is stored.

    It is the newest stored environment, with the engine of this machine unless that is older. A
    request for one version asks for that version, even if others are stored.
    """
    _, pinned = parse_spec(request.engine)
    environment = stored.newest(pinned)
    if environment is None:
        return None
    here = kernels.version
    if here and (pinned or version_order(here) >= version_order(environment.engine_version)):
        changes = {"engine_version": here, "kernel_hash": kernels.hash or environment.kernel_hash}
        return replace(environment, **changes)
    return environment


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
    platform = find_device(request.device).target.platform
    return _kernels(request.engine, version, family, platform, int(time.monotonic() // 60))


@lru_cache(maxsize=64)
def _kernels(spec: str, version: str | None, family: str, platform: str, minute: int) -> _Kernels:
    """Return the kernels, at most a minute old: a worker runs for weeks, and sources may change."""
    try:
        found = kernel_hash(find_engine(spec), family, platform)
    except UnknownEngine:
        return _Kernels(version)
    except UnsupportedKernel as error:
        return _Kernels(version, error=str(error))
    return _Kernels(version, found)


Kind = tuple[str, str, str, str]  # device, engine, source of times, family
Newest = Mapping[Kind, Environment]


def stored_rows(
    summaries: Iterable[StoredSummary], environments: Iterable[EnvironmentSeen]
) -> list[dict[str, Any]]:
    """Return the stored results, and whether their environment is its device's newest."""
    newest = newest_environments(environments)
    return [
        _stored_row(one, why_stale(one.environment, one.problem.family, newest))
        for one in summaries
    ]


def newest_environments(environments: Iterable[EnvironmentSeen]) -> Newest:
    """Return each device's newest environment, by engine, source of times and family."""
    newest: dict[Kind, EnvironmentSeen] = {}
    for seen in sorted(
        environments, key=lambda one: (version_order(one.environment.engine_version), one.newest)
    ):
        environment, family = seen.environment, seen.family
        newest[_kind(environment, family)] = seen
        if source_of(environment) == GPU:  # measured results answer requests to predict too
            newest[_kind(environment, family, PREDICTED)] = seen
    return {kind: seen.environment for kind, seen in newest.items()}


def why_stale(environment: Environment, problem_name: str, newest: Newest) -> str:
    """Say what has changed since a result was made in an environment; "" for the newest
    environment.

    `problem_name` stands at the beginning of the problem's text.
    """
    old, new = vars(environment), vars(newest[_kind(environment, problem_name)])
    names = OF_KERNELS + (OF_GPU if source_of(environment) == GPU else ())
    changed = [name for name in names if old[name] != new[name]]
    return "; ".join(f"{name} is now {new[name][:40]}" for name in changed)


@dataclass(frozen=True)
class WatchedFilter:
    """A choice of watched problems to list. None leaves nothing out."""

    device: str | None = None  # the device table's name
    model: str | None = None  # as the watch names it
    family: str | None = None

    def has(self, one: Watched) -> bool:
        """Say whether the filter keeps a watched problem."""
        # The text of an unresolved combination goes on with its parallel sizes.
        model = one.model.partition(" ")[0]
        return (
            self.device in (None, one.device)
            and self.model in (None, model)
            and self.family in (None, family_watched(one))
        )


def family_watched(one: Watched) -> str:
    """Return the family of a watched problem; "" if a watch names none."""
    if isinstance(one, JobRequest):
        return family_of(one.problem).name
    found = find_family(one.what) if isinstance(one, LeftAlone) else None
    return found.name if found else ""


def watched_rows(
    watch_list: WatchList, wanted: WatchedFilter | None, skip: int, limit: int, lookups: Lookups
) -> list[dict[str, Any]]:
    """Return a page of the watched problems and their states, in the order of the watch list."""
    workers = WorkerStore(lookups.database).list()
    model = wanted.model if wanted else None
    asked = [
        watch
        for watch in watch_list.watches
        if model is None or (isinstance(watch, Watch) and model in watch.models)
    ]
    every = ((watch.id, one) for watch in asked for one in watch.requests(workers))
    found = (row for row in every if wanted is None or wanted.has(row[1]))
    page = list(islice(found, skip, skip + limit))
    resolved = [request for _, request in page if isinstance(request, JobRequest)]
    statuses = iter(watch_statuses(resolved, lookups, workers))
    return [
        {
            **(_watched_row(next(statuses)) if isinstance(one, JobRequest) else _other_row(one)),
            "family": family_watched(one),
            "watch_id": watch,
        }
        for watch, one in page
    ]


def _kind(environment: Environment, family: str, source: str | None = None) -> Kind:
    source = source_of(environment) if source is None else source
    return environment.device, environment.engine, source, family_named(family).name


def _stored_row(summary: StoredSummary, why: str) -> dict[str, Any]:
    return {
        "device": summary.environment.device,
        "problem": summary.problem.spec(),
        "environment": vars(summary.environment),
        "standing": (WatchState.STALE if why else WatchState.TUNED).value,
        "why": why,
        "points": {status.value: count for status, count in sorted(summary.points.items())},
        "speedup": summary.speedup,
        "over": _over(summary),
        "oldest": summary.oldest,
        "newest": summary.newest,
    }


def _over(summary: StoredSummary) -> str | None:
    """Name the baseline of the gain."""
    if summary.speedup is None:
        return None
    return WITHOUT_US if summary.over_without_us else TRITONS_OWN


def _watched_row(status: WatchStatus) -> dict[str, Any]:
    request = status.request
    return {
        "model": request.model,
        "problem": request.problem.spec(),
        "device": request.device,
        "engine": request.engine,
        "measure": request.measure,
        "standing": status.standing.value,
        "why": status.why,
        "tuned_at": status.tuned_at,
    }


def _other_row(one: Unresolved | LeftAlone) -> dict[str, Any]:
    problem, standing = "", WatchState.LEFT_OUT
    if isinstance(one, Unresolved):
        why, standing = one.error.in_api_words(), WatchState.ERROR
    elif family_watched(one):
        problem, why = one.what, one.why
    else:
        why = f"{one.what}: {one.why}"
    return {
        "model": one.model,
        "problem": problem,
        "device": one.device,
        "engine": "",
        "measure": "",
        "standing": standing.value,
        "why": why,
        "tuned_at": None,
    }

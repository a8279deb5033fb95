"""Which stored results and which watched requests are tuned, stale or missing.

A device's newest environment is the one with the highest engine version, and among several of that
version the one with the newest result. What was measured in another environment is stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from tuner.engines.versions import version_order
from tuner.jobs.job import JobRequest
from tuner.problems.registry import family_named
from tuner.problems.results import Environment
from tuner.store.lookups import EnvironmentSeen, Lookups, StoredSummary
from tuner.store.workers import WorkerStore
from tuner.tuning.gains import TRITONS_OWN, WITHOUT_US
from workers.watch_status import (
    GPU,
    OF_GPU,
    OF_KERNELS,
    PREDICTED,
    WatchState,
    WatchStatus,
    source_of,
    watch_statuses,
)
from workers.watches import Unresolved, WatchList

Kind = tuple[str, str, str, str]  # device, engine, source of times, family
Newest = Mapping[Kind, Environment]


def stored_rows(
    summaries: Iterable[StoredSummary], environments: Iterable[EnvironmentSeen]
) -> list[dict[str, Any]]:
    """What is stored, and whether its environment is its device's newest."""
    newest = newest_environments(environments)
    return [
        _stored_row(one, why_stale(one.environment, one.problem.family, newest))
        for one in summaries
    ]


def newest_environments(environments: Iterable[EnvironmentSeen]) -> Newest:
    """Each device's newest environment, by engine, source of times and family."""
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
    """What has changed since a result was made in an environment; empty for the newest one.

    `problem_name` stands at the beginning of the problem's text.
    """
    old, new = vars(environment), vars(newest[_kind(environment, problem_name)])
    names = OF_KERNELS + (OF_GPU if source_of(environment) == GPU else ())
    changed = [name for name in names if old[name] != new[name]]
    return "; ".join(f"{name} is now {new[name][:40]}" for name in changed)


def watched_rows(
    watch_list: WatchList, device: str | None, skip: int, limit: int, lookups: Lookups
) -> list[dict[str, Any]]:
    """A page of the watched requests and their states, in the order of the watch list."""
    workers = WorkerStore.sharing(lookups).list()
    every = ((watch.id, one) for watch in watch_list.watches for one in watch.requests(workers))
    wanted = ((watch, one) for watch, one in every if device in (None, one.device))
    page = list(islice(wanted, skip, skip + limit))
    resolved = [request for _, request in page if isinstance(request, JobRequest)]
    statuses = iter(watch_statuses(resolved, lookups))
    return [
        {
            **(_error_row(one) if isinstance(one, Unresolved) else _watched_row(next(statuses))),
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
    """What the gain is over."""
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


def _error_row(unresolved: Unresolved) -> dict[str, Any]:
    return {
        "model": unresolved.model,
        "problem": "",
        "device": unresolved.device,
        "engine": "",
        "measure": "",
        "standing": WatchState.ERROR.value,
        "why": unresolved.error.in_api_words(),
        "tuned_at": None,
    }

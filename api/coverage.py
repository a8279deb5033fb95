"""Which stored results and which watched requests are tuned, stale or missing."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from tuner.jobs.job import JobRequest
from tuner.problems.registry import family_named
from tuner.problems.results import Environment
from tuner.store.lookups import EnvironmentSeen, Lookups, StoredSummary
from workers.nightly import WatchState, WatchStatus, watch_statuses
from workers.watches import Unresolved, WatchList

_FIELDS = ("engine_version", "kernel_hash", "triton", "torch", "cuda", "driver")


def stored_rows(
    summaries: Iterable[StoredSummary], environments: Iterable[EnvironmentSeen]
) -> list[dict[str, Any]]:
    """What is stored, and whether its environment is its device's newest."""
    newest: dict[tuple[str, str, str, str], EnvironmentSeen] = {}
    for seen in environments:
        kind = _kind(seen.environment, seen.family)
        if kind not in newest or newest[kind].newest < seen.newest:
            newest[kind] = seen
    return [
        _stored_row(one, newest[_kind(one.environment, one.problem.family)].environment)
        for one in summaries
    ]


def watched_rows(
    watch_list: WatchList, device: str | None, skip: int, limit: int, lookups: Lookups
) -> list[dict[str, Any]]:
    """A page of the watched requests and their states, in the order of the watch list."""
    every = (request for watch in watch_list.watches for request in watch.requests())
    wanted = (request for request in every if device in (None, request.device))
    page = list(islice(wanted, skip, skip + limit))
    resolved = [request for request in page if isinstance(request, JobRequest)]
    statuses = iter(watch_statuses(resolved, lookups))
    return [
        _error_row(one) if isinstance(one, Unresolved) else _watched_row(next(statuses))
        for one in page
    ]


def _kind(environment: Environment, family: str) -> tuple[str, str, str, str]:
    # Recordings and predictions have environments beside those of the device itself.
    source = environment.driver.partition(" ")[0]
    measured = "gpu" if source and source != "recording" else source
    return environment.device, environment.engine, measured, family_named(family).name


def _stored_row(summary: StoredSummary, newest: Environment) -> dict[str, Any]:
    old, new = vars(summary.environment), vars(newest)
    changed = [name for name in _FIELDS if old[name] != new[name]]
    return {
        "device": summary.environment.device,
        "problem": summary.problem.spec(),
        "environment": old,
        "standing": (WatchState.STALE if changed else WatchState.TUNED).value,
        "why": "; ".join(f"{name} is now {new[name][:40]}" for name in changed),
        "points": {status.value: count for status, count in sorted(summary.points.items())},
        "oldest": summary.oldest,
        "newest": summary.newest,
    }


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

"""What is tuned, stale or missing: of what is stored, and of what is watched."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from typing import Any

from tuner.jobs.job import JobRequest
from tuner.problems.registry import family_named
from tuner.problems.results import Environment
from tuner.store.lookups import Held, Lookups, Seen
from workers.nightly import Standing, judge
from workers.watches import WatchList

_FIELDS = ("engine_version", "kernel_hash", "triton", "torch", "cuda", "driver")


def stored_rows(held: Iterable[Held], environments: Iterable[Seen]) -> list[dict[str, Any]]:
    """What is stored, and whether its environment is its device's newest."""
    newest: dict[tuple[str, str, str, str], Seen] = {}
    for seen in environments:
        kind = _kind(seen.environment, seen.family)
        if kind not in newest or newest[kind].newest < seen.newest:
            newest[kind] = seen
    return [
        _stored_row(one, newest[_kind(one.environment, one.problem.family)].environment)
        for one in held
    ]


def watched_rows(
    watch_list: WatchList, device: str | None, skip: int, limit: int, lookups: Lookups
) -> list[dict[str, Any]]:
    """A page of the watched keys, in the order of the list, and how each stands."""
    every = (request for watch in watch_list.watches for request in watch.requests())
    mine = (request for request in every if device is None or _device_of(request) == device)
    page = list(islice(mine, skip, skip + limit))
    requests = [request for request in page if isinstance(request, JobRequest)]
    judged = iter(judge(requests, lookups))
    rows = []
    for one in page:
        if isinstance(one, JobRequest):
            found = next(judged)
            rows.append(_watched_row(one, found.standing.value, found.why, found.tuned_at))
        else:
            rows.append(_error_row(*one))
    return rows


def _kind(environment: Environment, family: str) -> tuple[str, str, str, str]:
    # A recording and a model of the device are environments beside the device's own.
    source = environment.driver.partition(" ")[0]
    measured = "gpu" if source and source != "recording" else source
    return environment.device, environment.engine, measured, family_named(family).name


def _stored_row(held: Held, newest: Environment) -> dict[str, Any]:
    old, new = vars(held.environment), vars(newest)
    changed = [name for name in _FIELDS if old[name] != new[name]]
    return {
        "device": held.environment.device,
        "problem": held.problem.spec(),
        "environment": old,
        "standing": (Standing.STALE if changed else Standing.TUNED).value,
        "why": "; ".join(f"{name} is now {new[name][:40]}" for name in changed),
        "points": {status.value: count for status, count in sorted(held.points.items())},
        "oldest": held.oldest,
        "newest": held.newest,
    }


def _watched_row(
    request: JobRequest, standing: str, why: str, tuned_at: datetime | None
) -> dict[str, Any]:
    return {
        "model": request.model,
        "problem": request.problem.spec(),
        "device": request.device,
        "engine": request.engine,
        "measure": request.measure,
        "standing": standing,
        "why": why,
        "tuned_at": tuned_at,
    }


def _error_row(what: str, why: str) -> dict[str, Any]:
    model, _, device = what.rpartition(" on ")
    empty = {"problem": "", "engine": "", "measure": "", "tuned_at": None}
    return {**empty, "model": model, "device": device, "standing": "error", "why": why}


def _device_of(request: JobRequest | tuple[str, str]) -> str:
    if isinstance(request, JobRequest):
        return request.device
    return request[0].rpartition(" on ")[2]

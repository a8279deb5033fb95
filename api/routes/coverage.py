"""Stored results, watches, and the nights that tune missing results."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import asdict
from datetime import date
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from starlette.exceptions import HTTPException

from api.asked import watch_of
from api.auth import Admin, Reader
from api.bodies import JsonRoute
from api.errors import responses
from api.matrix import counts_of, devices_of
from api.paging import (
    MatrixPage,
    NightsPage,
    StoredPage,
    WatchedPage,
    page_of,
    read_cursor,
    read_cursor_of,
    read_date_and_id,
    read_one,
    read_pair,
    read_row_place,
)
from api.requests import HideIn, NightIn, WatchIn
from api.schemas_service import (
    HeldPageOut,
    MatrixOut,
    NightDiffOut,
    NightOut,
    NightsOut,
    SummaryOut,
    WatchedPageOut,
    WatchesOut,
    WatchOut,
)
from api.state import Api, ApiDep
from tuner.devices.table import find_device
from tuner.jobs.job import JobRequest
from tuner.problems.registry import parse_problem
from tuner.store.night_diff import diff_nights
from workers.coverage import stored_rows, watched_rows
from workers.nightly import SCHEDULE, do_round, seen_now
from workers.watches import read_watch, watch_list_of

router = APIRouter(prefix="/v1", tags=["coverage"], route_class=JsonRoute)

WatchId = Annotated[int, Path(ge=1, lt=1 << 31)]


@router.get("/coverage", response_model=HeldPageOut, responses=responses())
def list_stored(
    page: Annotated[StoredPage, Query()], caller: Reader, api: ApiDep
) -> dict[str, Any]:
    """List the stored results by device and environment, and whether each is stale."""
    device = find_device(page.device).name if page.device else None
    after = read_cursor_of(device or "", page.after, read_pair)
    found = api.lookups.stored_summaries(device, after, page.limit + 1)
    summaries, cursor = page_of(found, page.limit, lambda summary: [*summary.cursor, device or ""])
    seen = api.lookups.environments({one.environment.device for one in summaries})
    return {"stored": stored_rows(summaries, seen), "next": cursor}


@router.get("/coverage/matrix", response_model=MatrixOut, responses=responses())
def list_matrix(
    page: Annotated[MatrixPage, Query()], caller: Reader, api: ApiDep
) -> dict[str, Any]:
    """List problems by device: measured, predicted, stale or missing, and the gain."""
    wanted = page.wanted()
    rows, after = api.matrix.rows(), read_cursor_of(wanted.digest, page.after, read_row_place)
    found = api.matrix.find(wanted)
    skip = 0 if after is None else bisect_right(found, after, key=wanted.place)
    devices = devices_of(rows)
    shown = [name for name in devices if not wanted.devices or name in wanted.devices]
    some, cursor = page_of(
        found[skip : skip + page.limit + 1],
        page.limit,
        lambda row: [*wanted.place(row), wanted.digest],
    )
    return {
        "devices": devices,
        "counts": counts_of(rows),
        "total": len(found),
        "rows": [row.as_json(shown) for row in some],
        "next": cursor,
    }


@router.get("/coverage/watched", response_model=WatchedPageOut, responses=responses())
def list_watched(
    page: Annotated[WatchedPage, Query()], caller: Reader, api: ApiDep
) -> dict[str, Any]:
    """List the watched models, in the watch list's order: tuned, stale or missing."""
    wanted, watch_list = page.wanted(), watch_list_of(api.settings.service, api.nights)
    digest = f"{wanted} {watch_list.digest}"
    skip = read_cursor_of(digest, page.after, read_one) or 0
    found = watched_rows(watch_list, wanted, skip, page.limit + 1, api.lookups)
    rows, cursor = page_of(found, page.limit, lambda _: [skip + page.limit, digest])
    return {"watched": rows, "next": cursor}


@router.get("/watches", response_model=WatchesOut, responses=responses())
def list_watches(caller: Reader, api: ApiDep) -> dict[str, Any]:
    """List the watches that were added over the API."""
    return {"watches": [asdict(watch) for watch in api.nights.watches()]}


@router.post("/watches", status_code=201, response_model=WatchOut, responses=responses(415))
def add_watch(body: WatchIn, caller: Admin, api: ApiDep) -> dict[str, Any]:
    """Add a watch, which keeps models tuned. If an equal watch exists, return it instead."""
    watch = watch_of(body, api.settings.service)
    return asdict(api.nights.add_watch(watch.as_json(), watch.key, caller.name))


@router.get("/watches/{watch_id}", response_model=WatchOut, responses=responses(404))
def get_watch(watch_id: WatchId, caller: Reader, api: ApiDep) -> dict[str, Any]:
    """Return a watch that was added over the API."""
    watch = api.nights.watch(watch_id)
    if watch is None:
        raise _no_watch(watch_id)
    return asdict(watch)


@router.delete("/watches/{watch_id}", status_code=204, responses=responses(404))
def remove_watch(watch_id: WatchId, caller: Admin, api: ApiDep) -> None:
    """Remove a watch. Its stored results stay."""
    if not api.nights.remove_watch(watch_id):
        raise _no_watch(watch_id)


@router.post("/watches/{watch_id}/hide", response_model=WatchOut, responses=responses(404, 415))
def hide_problem(watch_id: WatchId, body: HideIn, caller: Admin, api: ApiDep) -> dict[str, Any]:
    """Hide a problem of a watch on all its devices, or keep it tuned again."""
    return set_hidden(watch_id, body.problem, hidden=body.hidden, api=api)


def set_hidden(watch_id: int, text: str, *, hidden: bool, api: Api) -> dict[str, Any]:
    """Hide a problem of a watch, or show it again.

    Raises BadProblem, and HTTPException 404 if there is no such watch, or the watch has no such
    problem.
    """
    problem, stored = parse_problem(text).spec(), api.nights.watch(watch_id)
    if stored is None:
        raise _no_watch(watch_id)
    every = read_watch({**stored.watch, "hidden": []}).requests(api.fleet.workers())
    if all(not isinstance(one, JobRequest) or one.spec != problem for one in every):
        raise HTTPException(404, f"watch {watch_id} has no problem {problem}")
    stored = api.nights.hide(watch_id, problem, hidden=hidden)
    if stored is None:
        raise _no_watch(watch_id)
    return asdict(stored)


def _no_watch(watch_id: int) -> HTTPException:
    return HTTPException(404, f"there is no watch {watch_id}")


@router.post(
    "/nights",
    response_model=SummaryOut,
    response_model_exclude_unset=True,  # a skipped or planned round lacks the other fields
    responses=responses(415),
)
def run_night(caller: Admin, api: ApiDep, body: NightIn = NightIn()) -> dict[str, Any]:
    """Queue the missing and stale problems of watched models: once a day, or again with `force`."""
    settings = api.settings.service
    return do_round(settings, api.store, api.announcer, dry_run=body.dry_run, force=body.force)


@router.get(
    "/nights", response_model=NightsOut, response_model_exclude_unset=True, responses=responses()
)
def list_nights(
    page: Annotated[NightsPage, Query()], caller: Reader, api: ApiDep
) -> dict[str, Any]:
    """List the nights, the newest first, with the lengths of the lists in their summaries."""
    after = read_cursor(page.after, read_date_and_id)
    found = api.nights.counted(after, page.limit + 1)
    nights, cursor = page_of(found, page.limit, lambda night: [night.date.isoformat(), night.id])
    return {"nights": [asdict(night) for night in nights], "next": cursor}


@router.get(
    "/nights/{day}",
    response_model=NightOut,
    response_model_exclude_unset=True,
    responses=responses(404),
)
def get_night(day: date | Literal["last"], caller: Reader, api: ApiDep) -> dict[str, Any]:
    """Return the record of the night of a date, or of the last night."""
    night = api.nights.last() if day == "last" else api.nights.night(SCHEDULE, day)
    if night is None:
        raise HTTPException(404, "there was no night " + ("yet" if day == "last" else f"of {day}"))
    return {**asdict(night), **seen_now(night.summary, api.store)}


@router.get("/nights/{day}/diff", response_model=NightDiffOut, responses=responses(404))
def compare_nights(
    day: date,
    since: Annotated[date, Query(description="The earlier night.")],
    caller: Reader,
    api: ApiDep,
) -> dict[str, Any]:
    """Compare a finished night with an earlier night: jobs, and their runs' fastest trials."""
    return diff_nights(api.store, SCHEDULE, since, day).as_json()

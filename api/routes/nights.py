"""The nightly rounds: what they did, and doing one now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.exceptions import HTTPException

from api.auth import Admin, Reader
from api.bodies import JsonRoute
from api.errors import responses
from api.paging import page_of, read_cursor, read_date_and_id
from api.schemas_in import NightIn
from api.schemas_out import NightOut, NightsOut, SummaryOut
from api.schemas_query import Page
from api.state import Api, ApiDep
from workers.nightly import do_round, outcomes

router = APIRouter(prefix="/v1/nights", tags=["coverage"], route_class=JsonRoute)


@router.post(
    "",
    response_model=SummaryOut,
    response_model_exclude_unset=True,  # what was skipped or only planned lacks the rest
    responses=responses(415),
)
def run_night(caller: Admin, api: ApiDep, body: NightIn = NightIn()) -> dict[str, Any]:
    """Queue what is missing or stale of what is watched: once a day, or again with `force`."""
    settings = api.settings.service
    return do_round(settings, api.store, api.announcer, dry_run=body.dry_run, force=body.force)


@router.get("", response_model=NightsOut, response_model_exclude_unset=True, responses=responses())
def list_nights(page: Annotated[Page, Query()], caller: Reader, api: ApiDep) -> dict[str, Any]:
    """List the nights, the newest first."""
    after = read_cursor(page.after, read_date_and_id)
    found = api.nights.nights(after=after, limit=page.limit + 1)
    nights, cursor = page_of(found, page.limit, lambda night: [night.date.isoformat(), night.id])
    return {"nights": [asdict(night) for night in nights], "next": cursor}


@router.get(
    "/last", response_model=NightOut, response_model_exclude_unset=True, responses=responses(404)
)
def get_last_night(caller: Reader, api: ApiDep) -> dict[str, Any]:
    """Show what the last night did."""
    night = api.nights.last()
    if night is None:
        raise HTTPException(404, "there was no night yet")
    return {**asdict(night), "outcomes": outcomes_of(night.summary, api)}


def outcomes_of(summary: Mapping[str, Any] | None, api: Api) -> list[dict[str, Any]]:
    """What came of the things that a night queued."""
    return [one.as_json() for one in outcomes(summary or {}, api.store)]

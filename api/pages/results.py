"""A result: times by size, entries with reasons, what was tried, and its history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request
from pydantic import Field, ValidationError
from starlette.responses import Response

from api.auth import Admin, Caller, Reader
from api.pages.browser import asked
from api.pages.forms import Posted, ask_first, mistakes_in
from api.pages.points import WinnerRow, charts_of, entries_of, over_of, speedup_of
from api.pages.render import go, page
from api.pages.trial_map import map_of
from api.paging import cursor_at
from api.routes.results import get_result, list_run_trials, withdraw_result
from api.schemas_query import Page, ResultOf
from api.state import Api, ApiDep
from tuner.devices.table import find_device
from tuner.errors import BadInput

router = APIRouter(include_in_schema=False)

MOST_TRIALS = 1000  # of one point


class ResultPage(ResultOf):
    """Which result to show, and what of it."""

    environment: int = Field(0, ge=0, lt=1000, description="In the order of the history.")
    point: int | None = Field(None, ge=0, lt=100_000, description="Whose trials to show.")
    across: str = Field("", max_length=60)
    down: str = Field("", max_length=60)


@router.get("/results")
def show_result(
    request: Request,
    wanted: Annotated[ResultPage, Depends(asked(ResultPage))],
    caller: Reader,
    api: ApiDep,
) -> Response:
    """One problem on one device."""
    which = ResultOf(problem=wanted.problem, device=wanted.device, engine=wanted.engine)
    result = get_result(which, caller, api)
    histories = result["environments"]
    chosen = histories[min(wanted.environment, len(histories) - 1)]
    entries = entries_of(chosen["winners"])
    measured = [one for one in entries if one.winner["status"] == "ok"]
    timed = measured or [one for one in entries if one.winner["median_us"] is not None]
    about = _entry(entries, wanted.point)
    tried = _trials(about, caller, api) if about else []
    return page(
        request,
        "result",
        result=result,
        wanted=wanted,
        chosen=chosen,
        entries=entries,
        charts=charts_of(timed),
        speedup=speedup_of(timed),
        over=over_of(timed),
        measured=bool(measured),
        history=[(one, speedup_of(entries_of(one["winners"]))) for one in histories],
        about=about,
        trials=map_of(tried, wanted.across, wanted.down) if about else None,
        tried=len(tried),
        limit_bytes=find_device(result["device"]).shared_optin_bytes,
        predicted=any(one.winner["status"] == "predicted" for one in entries),
    )


@router.post("/results/withdraw")
def withdraw(request: Request, form: Posted, caller: Admin, api: ApiDep) -> Response:
    """Withdraw a result that nobody wants."""
    body = {name: form.get(name, "") for name in ("problem", "device", "engine")}
    if asking := ask_first(request, form, "results?" + urlencode(body)):
        return asking
    try:
        withdraw_result(ResultOf.model_validate(body), caller, api)
    except ValidationError as error:
        raise BadInput("; ".join(mistakes_in(error, body).values())) from None
    return go(request, "")


def _entry(entries: Sequence[WinnerRow], number: int | None) -> WinnerRow | None:
    """The entry whose trials are shown: the one that was chosen, or the one that gained most."""
    if number is not None and number < len(entries):
        return entries[number]
    return max(entries, key=lambda one: one.speedup or 0.0, default=None)


def _trials(about: WinnerRow, caller: Caller, api: Api) -> list[Mapping[str, Any]]:
    """The stored trials at the point of an entry."""
    point = about.winner
    place = [
        about.part,
        point["batch_size"],
        point.get("new_tokens") or 0,
        point.get("cached_tokens") or 0,
        "",
        "",
    ]
    found = list_run_trials(
        point["run_id"], Page(after=cursor_at(place), limit=MOST_TRIALS), caller, api
    )
    return [trial for trial in found["trials"] if _is_at(trial, point)]


def _is_at(trial: Mapping[str, Any], point: Mapping[str, Any]) -> bool:
    names = ("gemm", "part", "batch_size", "new_tokens", "cached_tokens")
    return all(trial.get(name) == point.get(name) for name in names)

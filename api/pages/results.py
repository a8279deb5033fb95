"""A result: the winners published for a problem on a device, and its trials."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request
from pydantic import Field, ValidationError
from starlette.responses import Response

from api.auth import Admin, Caller, Reader
from api.pages.browser import asked
from api.pages.forms import Posted, ask_first, mistakes_in
from api.pages.render import go, page
from api.pages.winners import (
    WinnerRow,
    charts_of,
    entries_of,
    over_of,
    server_of,
    speedup_of,
)
from api.paging import Page, ResultOf, cursor_at
from api.routes.results import get_result, list_run_trials, withdraw_result
from api.state import Api, ApiDep
from tuner.devices.table import find_device
from tuner.errors import BadInput
from tuner.problems.results import Status

SHADES = 5  # the fastest is 0
_FIRST = ("BLOCK_SIZE_M", "BLOCK_SIZE_N")


@dataclass(frozen=True)
class TrialCell:
    """The trials with two values: the best time, or why no trial has a time."""

    count: int
    best_us: float | None
    shade: int | None
    status: str  # of the best trial
    shared_bytes: int | None  # of the best trial, or the least that did not fit


@dataclass(frozen=True)
class TrialMap:
    """A table of pairs: rows are values of `down`, columns are values of `across`."""

    names: Sequence[str]  # parameters that may be chosen
    across: str
    down: str
    columns: Sequence[int]
    rows: Mapping[int, Mapping[int, TrialCell]]
    count: int
    best_us: float | None


def map_of(trials: Sequence[Mapping[str, Any]], across: str, down: str) -> TrialMap | None:
    """Return the map of some trials of a point; None if no two parameters vary."""
    values: dict[str, set[int]] = defaultdict(set)
    for trial in trials:
        for name, value in trial["config"].items():
            values[name].add(value)
    names = sorted(name for name, some in values.items() if len(some) > 1)
    if len(names) < 2:
        return None
    across = across if across in names else next((n for n in _FIRST if n in names), names[0])
    others = [name for name in names if name != across]
    down = down if down in others else next((n for n in _FIRST[::-1] if n in others), others[0])
    pairs: dict[int, dict[int, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        config = trial["config"]
        if across in config and down in config:
            pairs[config[down]][config[across]].append(trial)
    times = [trial["median_us"] for trial in trials if trial["median_us"] is not None]
    best = min(times, default=None)
    rows = {
        value: {at: _pair(some, best) for at, some in by_column.items()}
        for value, by_column in sorted(pairs.items())
    }
    columns = sorted({at for by_column in rows.values() for at in by_column})
    return TrialMap(names, across, down, columns, rows, len(trials), best)


def _pair(trials: Sequence[Mapping[str, Any]], best_us: float | None) -> TrialCell:
    timed = [trial for trial in trials if trial["median_us"] is not None]
    if timed:
        best = min(timed, key=lambda trial: trial["median_us"])
        shade = _shade(best["median_us"], best_us or best["median_us"])
        return TrialCell(
            len(trials),
            best["median_us"],
            shade,
            Status(best["status"]).value,
            best["shared_bytes"],
        )
    first = min(trials, key=lambda trial: trial["shared_bytes"] or 1 << 40)
    return TrialCell(len(trials), None, None, Status(first["status"]).value, first["shared_bytes"])


def _shade(time_us: float, best_us: float) -> int:
    """Return 0 within a tenth of the best time, and the darkest from twice the time on."""
    slower = time_us / best_us
    limits = (1.1, 1.3, 1.6, 2.0)
    return next((shade for shade, limit in enumerate(limits) if slower <= limit), SHADES - 1)


router = APIRouter(include_in_schema=False)

MOST_TRIALS = 1000  # of one point


class ResultPage(ResultOf):
    """The result to show, and its environment, point and parameters."""

    environment: int = Field(0, ge=0, lt=1000, description="In the order of the history.")
    point: int | None = Field(None, ge=0, lt=100_000, description="Whose trials to show.")
    across: str = Field("", max_length=60)
    down: str = Field("", max_length=60)


async def _asked(request: Request) -> ResultPage | None:
    """Return the query, None for none. Raises as `asked` does."""
    return await asked(ResultPage)(request) if request.query_params else None


@router.get("/results")
def show_result(
    request: Request,
    wanted: Annotated[ResultPage | None, Depends(_asked)],
    caller: Reader,
    api: ApiDep,
) -> Response:
    """Show the result of a problem on a device. Without a query, go where results are chosen."""
    if wanted is None:
        return go(request, "")
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
        server=server_of(timed or entries),
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
    """Return the entry whose trials are shown: the chosen entry, or the largest gain's."""
    if number is not None and number < len(entries):
        return entries[number]
    return max(entries, key=lambda one: one.speedup or 0.0, default=None)


def _trials(about: WinnerRow, caller: Caller, api: Api) -> list[Mapping[str, Any]]:
    """Return the stored trials at the point of an entry."""
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

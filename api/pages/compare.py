"""Two results of one problem side by side: two devices, or two environments of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field
from starlette.exceptions import HTTPException

from api.auth import Caller, Reader
from api.pages.charts import Chart, chart_of
from api.pages.forms import asked
from api.pages.names import device_short
from api.pages.points import Entry, entries_of
from api.pages.render import page
from api.routes.results import get_result
from api.schemas_in import ResultOf
from api.state import Api, ApiDep
from api.text import EngineName, Name
from tuner.problems.fields import Strict

router = APIRouter(include_in_schema=False)

_MOST_SIDES = 60  # results of one problem that may be chosen
_Side = Annotated[str, Field(max_length=80, pattern=r"^[A-Za-z0-9][A-Za-z0-9 _-]*(:[0-9]{1,3})?$")]


class Sides(Strict):
    """Which results to compare: each is a device, or DEVICE:NUMBER of one of its environments."""

    problem: Name | None = None
    engine: EngineName = "sglang"
    left: _Side | None = None
    right: _Side | None = None


@dataclass(frozen=True)
class Side:
    """One of the results of a problem."""

    key: str  # as Sides names it
    device: str
    history: Mapping[str, Any]
    entries: Mapping[tuple[str, str], Entry]  # by part and size; where two count, the better one

    @property
    def name(self) -> str:
        place = self.history["environment"]
        return f"{device_short(self.device)}, {place['engine']} {place['engine_version']}"


@router.get("/compare")
def show_comparison(
    request: Request, wanted: Annotated[Sides, Depends(asked(Sides))], caller: Reader, api: ApiDep
) -> Response:
    """Times of two results by size, and how many times as fast the one is as the other."""
    if wanted.problem is None:
        several = [row for row in api.matrix.rows() if len(row.cells) > 1]
        return page(request, "compare", wanted=wanted, several=several[:_MOST_SIDES], sides=[])
    sides = _sides_of(wanted.problem, wanted.engine, caller, api)
    if not sides:
        raise HTTPException(404, "nothing is published for this problem")
    left = _chosen(sides, wanted.left, 0)
    right = _chosen(sides, wanted.right, min(1, len(sides) - 1))
    both = [key for key in left.entries if key in right.entries]
    return page(
        request,
        "compare",
        wanted=wanted,
        several=[],
        sides=sides,
        left=left,
        right=right,
        pairs=[(*key, left.entries[key], right.entries[key]) for key in both],
        charts=_charts(left, right),
    )


def _sides_of(problem: str, engine: str, caller: Caller, api: Api) -> list[Side]:
    rows = [r for r in api.matrix.rows() if r.problem == problem and r.engine == engine]
    devices = sorted({name for row in rows for name, cell in row.cells.items() if cell["newest"]})
    sides = []
    for device in devices:
        result = get_result(ResultOf(problem=problem, device=device, engine=engine), caller, api)
        for number, history in enumerate(result["environments"]):
            entries = {(one.part, one.size): one for one in entries_of(history["winners"])}
            sides.append(Side(f"{device}:{number}", device, history, entries))
    return sides[:_MOST_SIDES]


def _chosen(sides: list[Side], key: str | None, default: int) -> Side:
    if key is None:
        return sides[default]
    whole = key if ":" in key else f"{key}:0"
    found = next((side for side in sides if side.key == whole), None)
    if found is None:
        raise HTTPException(404, f"nothing is published for this problem on {key}")
    return found


def _charts(left: Side, right: Side) -> list[Chart]:
    parts = dict.fromkeys(part for part, _ in (*left.entries, *right.entries))
    charts = []
    for part in parts:
        series = {
            (side.name, kind): {
                size: entry.winner["median_us"]
                for (its_part, size), entry in side.entries.items()
                if its_part == part and entry.winner["median_us"]
            }
            for side, kind in ((left, "tuned"), (right, "other"))
        }
        if chart := chart_of(part, series):
            charts.append(chart)
    return charts

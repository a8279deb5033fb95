"""The first page: problems by device, and what runs now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import Field
from starlette.responses import Response

from api.auth import Reader
from api.matrix import CellState, MatrixOrder
from api.pages.cells import boxes_of
from api.pages.forms import asked
from api.pages.names import problem_words
from api.pages.render import page
from api.routes.coverage import list_matrix
from api.routes.jobs import list_jobs
from api.schemas_in import MOST_JOBS
from api.schemas_query import JobPage, MatrixPage
from api.state import ApiDep
from tuner.devices.table import devices
from tuner.errors import UnknownModel
from tuner.jobs.job import HELD
from tuner.models.table import find_preset
from tuner.problems.registry import families
from tuner.store.api_key import Scope

router = APIRouter(include_in_schema=False)

_EMPTY = (CellState.NOTHING, CellState.MISSING)  # where boxes can be ticked
# The jobs that the first page names.
_RUNNING = JobPage.model_validate({"state": list(HELD), "limit": 5})


class CoveragePage(MatrixPage):
    """Which problems to show. A browser takes long for thousands of cells."""

    limit: int = Field(25, ge=1, le=1000)
    tick: bool = False  # all boxes of the page, as far as one batch goes


@router.get("/")
def show_coverage(
    request: Request,
    wanted: Annotated[CoveragePage, Depends(asked(CoveragePage))],
    caller: Reader,
    api: ApiDep,
) -> Response:
    """What is tuned, predicted, stale or missing."""
    running = list_jobs(_RUNNING, caller, api)
    matrix = list_matrix(wanted, caller, api)
    chosen = sorted(wanted.wanted().devices)
    columns = chosen or matrix["devices"]
    for row in matrix["rows"]:
        row["by_device"] = {cell["device"]: cell for cell in row["cells"]}
    may_tick = wanted.state in _EMPTY and caller.scope >= Scope.SUBMIT
    ticked = _add_boxes(matrix["rows"], columns, MOST_JOBS * wanted.tick) if may_tick else None
    return page(
        request,
        "coverage",
        matrix=matrix,
        columns=columns,
        wanted=wanted,
        chosen=chosen,
        others=[one.name for one in devices() if one.name not in matrix["devices"]],
        model=_preset(wanted.q or ""),
        ticked=ticked,
        most=MOST_JOBS,
        running=running["jobs"],
        more_running=running["next"] is not None,
        families=[(one.name, one.title.removeprefix("a ")) for one in families()],
        states=list(CellState),
        orders=list(MatrixOrder),
    )


def _add_boxes(rows: Sequence[dict[str, Any]], columns: Sequence[str], ticks: int) -> int:
    """Give rows cells with boxes, the first `ticks` of them ticked; returns how many are."""
    left = ticks
    for row in rows:
        name = row["models"][0] if row["models"] else problem_words(row["problem"])
        field = f"{row['engine']} {row['problem']}"
        row["boxes"], count = boxes_of(row["by_device"], columns, name, field, left)
        left -= min(left, count)
    return ticks - left


def _preset(text: str) -> str:
    """The name of the model that a search asks for; empty if it is none."""
    try:
        return find_preset(text).name
    except UnknownModel:
        return ""

"""The first page: problems by device, and what runs now."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import Field
from starlette.responses import Response

from api.auth import Reader
from api.matrix import CellState, MatrixOrder
from api.pages.forms import asked
from api.pages.render import page
from api.routes.coverage import list_matrix
from api.routes.jobs import list_jobs
from api.schemas_query import JobPage, MatrixPage
from api.state import ApiDep
from tuner.jobs.job import HELD
from tuner.problems.registry import families

router = APIRouter(include_in_schema=False)

# The jobs that the first page names.
_RUNNING = JobPage.model_validate({"state": list(HELD), "limit": 5})


class CoveragePage(MatrixPage):
    """Which problems to show. A browser takes long for thousands of cells."""

    limit: int = Field(25, ge=1, le=1000)


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
    chosen = wanted.wanted().devices
    for row in matrix["rows"]:
        row["by_device"] = {cell["device"]: cell for cell in row["cells"]}
    return page(
        request,
        "coverage",
        matrix=matrix,
        columns=[name for name in matrix["devices"] if not chosen or name in chosen],
        wanted=wanted,
        chosen=chosen,
        running=running["jobs"],
        more_running=running["next"] is not None,
        families=[(one.name, one.title.removeprefix("a ")) for one in families()],
        states=list(CellState),
        orders=list(MatrixOrder),
    )

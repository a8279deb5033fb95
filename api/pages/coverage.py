"""The first page, problems by device; jobs for several gaps; and the known devices and models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from markupsafe import Markup, escape
from pydantic import Field, ValidationError

from api.auth import Admin, Reader, Submitter
from api.errors import mistakes_of
from api.fields import Name, Strict
from api.matrix import CellState, MatrixOrder, has_words
from api.pages.browser import asked, checked_return
from api.pages.forms import Posted
from api.pages.names import (
    device_short,
    gain_words,
    plain,
    problem_words,
    readable,
    status_words,
)
from api.pages.render import go, page
from api.paging import JobPage, MatrixPage
from api.requests import MOST_JOBS, SubmitJobs, WatchIn
from api.routes.coverage import add_watch, list_matrix
from api.routes.jobs import list_jobs, submit_jobs
from api.routes.service import list_devices, list_models
from api.state import ApiDep
from tuner.devices.table import devices
from tuner.errors import BadInput, UnknownModel
from tuner.jobs.job import HELD
from tuner.models.served_as import models_of
from tuner.models.table import find_preset
from tuner.problems.registry import families, parse_problem
from tuner.store.api_key import Scope
from tuner.tuning.gains import WITHOUT_US

router = APIRouter(include_in_schema=False)

_EMPTY = (CellState.NOTHING, CellState.MISSING)  # where boxes can be ticked
# The jobs that the first page names.
_RUNNING = JobPage.model_validate({"state": list(HELD), "limit": 5})


class CoveragePage(MatrixPage):
    """The problems to show. A browser takes long for thousands of cells."""

    limit: int = Field(25, ge=1, le=1000)
    tick: bool = False  # all boxes of the page, as far as one batch goes


@router.get("/")
def show_coverage(
    request: Request,
    wanted: Annotated[CoveragePage, Depends(asked(CoveragePage))],
    caller: Reader,
    api: ApiDep,
) -> Response:
    """Show the problems that are tuned, predicted, stale or missing."""
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
        cells_of=cells_of,
        others=[one.name for one in devices() if one.name not in matrix["devices"]],
        model=_preset(wanted.q or ""),
        ticked=ticked,
        most=MOST_JOBS,
        running=[readable(job) for job in running["jobs"]],
        more_running=running["next"] is not None,
        families=[(one.name, one.title.removeprefix("a ")) for one in families()],
        states=list(CellState),
        orders=list(MatrixOrder),
    )


def _add_boxes(rows: Sequence[dict[str, Any]], columns: Sequence[str], ticks: int) -> int:
    """Give rows cells with boxes, the first `ticks` of them ticked. Return how many are ticked."""
    left = ticks
    for row in rows:
        name = row["models"][0] if row["models"] else problem_words(row["problem"])
        field = f"{row['engine']} {row['problem']}"
        row["boxes"], count = boxes_of(row["by_device"], columns, name, field, left)
        left -= min(left, count)
    return ticks - left


def _preset(text: str) -> str:
    """Return the name of the model that a search asks for; empty if it asks for no model."""
    try:
        return find_preset(text).name
    except UnknownModel:
        return ""


class Search(Strict):
    """A search of a list: it shows the rows that have each word in names, aliases or figures."""

    q: Name | None = None

    def has(self, row: Mapping[str, Any]) -> bool:
        """Say whether a row has each word of the search."""
        return has_words(self.q or "", *row.values())


@router.get("/devices")
def show_devices(
    request: Request, wanted: Annotated[Search, Depends(asked(Search))], caller: Reader
) -> Response:
    """List the GPUs that can be tuned for."""
    found = [one for one in list_devices(caller)["devices"] if wanted.has(one)]
    return page(request, "devices", devices=found, q=wanted.q)


@router.get("/models")
def show_models(
    request: Request, wanted: Annotated[Search, Depends(asked(Search))], caller: Reader
) -> Response:
    """List the models that are known by name."""
    found = [one for one in list_models(caller)["models"] if wanted.has(one)]
    return page(request, "models", models=found, q=wanted.q)


# Jinja takes ten times as long for each cell, and there are thousands. A cell is two elements, and
# its style draws the mark: a browser takes long for each element.
def cells_of(
    cells: Mapping[str, Mapping[str, Any]], columns: Sequence[str], result: str, gap: str
) -> Markup:
    """Return the cells of a row, in the order of the devices, from the `cells` of the API's answer.

    `result` and `gap` are the addresses of a result and of a form, which a device's name completes;
    `gap` is empty for a reader who may not queue a job.
    """
    to_result, to_gap = escape(result), escape(gap)
    shown = (_cell(name, cells.get(name), to_result, to_gap) for name in columns)
    return Markup("\n".join(shown))  # noqa: S704 - every text in it is escaped


def boxes_of(
    cells: Mapping[str, Mapping[str, Any]], columns: Sequence[str], row: str, field: str, ticks: int
) -> tuple[Markup, int]:
    """Return cells as `cells_of`, with boxes to tick for gaps, and the number of boxes.

    The first `ticks` boxes are ticked. `row` names the row; a device before `field` names the box.
    """
    named, of_row = escape(field), escape(row)
    shown, boxes = [], 0
    for name in columns:
        if (cell := cells.get(name)) is not None and cell["state"] != "missing":
            shown.append(_shown(cell))
            continue
        ticked = " checked" if boxes < ticks else ""
        boxes += 1
        said = f'aria-label="{of_row} on {escape(device_short(name))}"'
        box = f'<input type="checkbox" name="{escape(name)} {named}" value="true" {said}{ticked}>'
        shown.append(f'<td><label class="cell gap">{box}</label></td>')
    return Markup("\n".join(shown)), boxes  # noqa: S704 - every text in it is escaped


def _cell(name: str, cell: Mapping[str, Any] | None, result: str, gap: str) -> str:
    device = escape(name)
    if cell is None:
        link = f'<a class="cell gap" href="{gap}{device}" aria-label="nothing: queue a job"></a>'
        return f"<td>{link if gap else ''}</td>"
    state, title = cell["state"].value, _title(cell)
    if not cell["newest"]:  # the store has nothing: it is missing, or from the shelf
        said = f'aria-label="{state}: queue a job"'
        link = f'<td><a class="cell {state}" href="{gap}{device}"{title} {said}></a></td>'
        return link if gap else _shown(cell)
    speedup = gain_words(cell["speedup"])
    said = f'aria-label="{speedup} {status_words(state)}"'
    return f'<td><a class="cell {state}" href="{result}{device}"{title} {said}>{speedup}</a></td>'


def _shown(cell: Mapping[str, Any]) -> str:
    """Return a cell between boxes."""
    state, speedup = cell["state"].value, gain_words(cell["speedup"])
    said = f'<span class="hide">{status_words(state)}</span>'
    return f'<td><span class="cell {state}"{_title(cell)}>{speedup}{said}</span></td>'


def _title(cell: Mapping[str, Any]) -> str:
    over = f"over {cell['over']}" if cell["over"] not in (None, WITHOUT_US) else ""
    told = "; ".join(filter(None, (str(plain(cell["why"])), over)))
    return f' title="{escape(told)}"' if told else ""


@dataclass(frozen=True)
class Gap:
    """A problem without a result on a device. The name of its box has all three fields."""

    device: str
    engine: str
    problem: str

    @property
    def name(self) -> str:
        """Return the name in lists. Raises BadInput for a text that is no problem."""
        return next(iter(models_of(parse_problem(self.problem))), "")

    def as_job(self, measure: str) -> dict[str, Any]:
        """Return the body of its job."""
        body = {"model": self.problem, "device": self.device, "engine": self.engine}
        named = {"name": self.name} if self.name else {}
        return {**body, **named, "measure": measure}


@router.post("/jobs/several")
def queue(request: Request, form: Posted, caller: Submitter, api: ApiDep) -> Response:
    """Queue the jobs whose boxes are ticked, and show the answer to each."""
    try:
        gaps = _ticked(form)
        body = {"jobs": [gap.as_job(form.get("measure", "gpu")) for gap in gaps]}
        jobs = SubmitJobs.model_validate(body)
    except BadInput as error:
        return _answer(request, form, problem=error.in_page_words())
    except ValidationError as error:
        found = [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
        lines = [mistake.line() for mistake in mistakes_of(found, body, on_page=True)]
        return _answer(request, form, problem="; ".join(lines))
    answers = submit_jobs(jobs, request, Response(), caller, api)["jobs"]
    return _answer(request, form, answers=list(zip(gaps, answers, strict=True)))


@router.post("/watches/several")
def watch(request: Request, form: Posted, caller: Admin, api: ApiDep) -> Response:
    """Add a watch of the ticked problems for each device and engine."""
    try:
        wanted: dict[tuple[str, str], list[str]] = defaultdict(list)
        for gap in _ticked(form):
            wanted[gap.device, gap.engine].append(gap.problem)
        for (device, engine), problems in wanted.items():
            body = {"models": problems, "devices": [device], "engine": engine}
            body["measure"] = form.get("measure", "gpu")
            add_watch(WatchIn.model_validate(body), caller, api)
    except BadInput as error:
        return _answer(request, form, problem=error.in_page_words())
    return go(request, "watches")


def _ticked(form: Mapping[str, str]) -> list[Gap]:
    """Return the gaps whose boxes are ticked. Raises BadInput for none, and for too many."""
    names = [name.split(" ", 2) for name, value in form.items() if value == "true"]
    gaps = [Gap(*parts) for parts in names if len(parts) == 3]
    if not gaps:
        raise BadInput("no box is ticked: go back, and tick the problems to tune")
    if len(gaps) > MOST_JOBS:
        raise BadInput(f"{len(gaps)} boxes are ticked: at most {MOST_JOBS} can be queued at once")
    return gaps


def _answer(
    request: Request,
    form: Mapping[str, str],
    *,
    problem: str = "",
    answers: Sequence[tuple[Gap, Mapping[str, Any]]] = (),
) -> Response:
    back = checked_return(f"?{form.get('back', '')}")
    return page(
        request,
        "several",
        422 if problem else 200,
        problem=problem,
        answers=answers,
        queued=sum(one["problem"] is None for _, one in answers),
        back=back,
    )

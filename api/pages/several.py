"""Several gaps at once: the boxes that are ticked in Coverage become jobs, or watches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from api.auth import Admin, Submitter
from api.errors import mistakes_of
from api.pages.browser import checked_return
from api.pages.forms import Posted
from api.pages.render import go, page
from api.requests import MOST_JOBS, SubmitJobs, WatchIn
from api.routes.coverage import add_watch
from api.routes.jobs import submit_jobs
from api.state import ApiDep
from tuner.errors import BadInput
from tuner.jobs.targets import models_of
from tuner.problems.registry import parse_problem

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True)
class Gap:
    """A problem that nothing is stored for on a device. The name of its box says all three."""

    device: str
    engine: str
    problem: str

    @property
    def name(self) -> str:
        """What lists call it. Raises BadInput for a text that is no problem."""
        return next(iter(models_of(parse_problem(self.problem))), "")

    def as_job(self, measure: str) -> dict[str, Any]:
        """The body of its job."""
        body = {"model": self.problem, "device": self.device, "engine": self.engine}
        named = {"name": self.name} if self.name else {}
        return {**body, **named, "measure": measure}


@router.post("/jobs/several")
def queue(request: Request, form: Posted, caller: Submitter, api: ApiDep) -> Response:
    """Queue the jobs whose boxes are ticked, and say what became of each."""
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
    """Keep tuned what is ticked: a watch for each device and engine."""
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
    """The gaps whose boxes are ticked. Raises BadInput for none, and for too many."""
    names = [name.split(" ", 2) for name, value in form.items() if value == "true"]
    gaps = [Gap(*parts) for parts in names if len(parts) == 3]
    if not gaps:
        raise BadInput("no box is ticked: go back, and tick what is to be tuned")
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

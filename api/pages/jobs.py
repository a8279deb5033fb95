"""Jobs: the list, a job as it happens, and the form for a new job."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field, ValidationError

from api.auth import Admin, Caller, Reader, Submitter
from api.fields import JobId
from api.pages.browser import asked
from api.pages.forms import Posted, ask_first, full_name, mistakes_in, refused_in
from api.pages.names import readable, steps_of
from api.pages.render import as_time, go, page
from api.pages.winners import (
    charts_of,
    entries_of,
    entries_so_far,
    over_of,
    server_of,
    speedup_of,
)
from api.paging import JobPage, Page
from api.requests import SubmitJob, SubmitModel
from api.routes.jobs import (
    cancel_job,
    delete_job,
    get_job,
    list_jobs,
    retry_job,
    submit_job,
    submit_model,
)
from api.routes.results import get_progress, list_trials, list_winners
from api.routes.service import list_devices, list_models, plan_body
from api.state import Api, ApiDep
from tuner.devices.table import devices
from tuner.errors import BadInput, NotRetriable, UnknownJob
from tuner.jobs.job import MAX_ATTEMPTS, JobState
from tuner.jobs.queue import JobQuery
from tuner.problems.dtypes import Dtype
from tuner.problems.registry import is_problem
from tuner.problems.results import Status
from tuner.store.api_key import Scope
from tuner.tuning.request import Effort
from workers.watches import is_preset

router = APIRouter(prefix="/jobs", include_in_schema=False)

MOST_EVENTS = 1000  # of a job's page; further events arrive as they happen
MOST_FAILURES = 3  # reasons that a page names
_SOME_TRIALS = Page(limit=200)  # that it looks at for them
_TICK = "tick "  # before a problem, the name of its box
_NUMBERS = ("tp", "ep", "seed")
_WHOLE = re.compile(r"[0-9]{1,15}")


# The outcomes of cancelling the chosen jobs.
_ENDED, _STOPPING, _OTHERS, _OVER, _GONE = _OUTCOMES = (
    *("cancelled", "stopped soon by its worker", "still wanted by other clients"),
    *("already over", "deleted or not yours"),
)


class ShownJobs(JobPage):
    """The jobs to show. After a cancel, `came` has a number for each of _OUTCOMES."""

    came: str = Field("", pattern=rf"^[0-9]{{1,3}}(,[0-9]{{1,3}}){{{len(_OUTCOMES) - 1}}}$")

    def came_words(self) -> str:
        """Return the numbers as words."""
        counts = zip(self.came.split(","), _OUTCOMES, strict=bool(self.came))
        return ", ".join(f"{count} {outcome}" for count, outcome in counts if int(count or 0))


@router.get("")
def show_jobs(
    request: Request,
    wanted: Annotated[ShownJobs, Depends(asked(ShownJobs))],
    caller: Reader,
    api: ApiDep,
) -> Response:
    """List the jobs, the newest first."""
    found = list_jobs(wanted, caller, api)
    devices = [one["name"] for one in list_devices(caller)["devices"]]
    found["jobs"] = [
        {**readable(job), "mine": _owns(caller, job), "took_s": _took_s(job)}
        for job in found["jobs"]
    ]
    return page(
        request,
        "jobs",
        found=found,
        wanted=wanted,
        counts=api.jobs.counts(wanted.query()),
        states=list(JobState),
        devices=devices,
        device=full_name(wanted.device or ""),
        query={name: value for name, value in request.query_params.items() if name != "came"},
    )


@router.post("/chosen")
def change_chosen(request: Request, form: Posted, caller: Submitter, api: ApiDep) -> Response:
    """Cancel or retry the ticked jobs. Pass over jobs that this does not fit, and jobs that are
    gone or were changed meanwhile.
    """
    given = [one for one in request.query_params.multi_items() if one[0] != "came"]
    ticked = list(filter(None, form.get("job", "").split(",")))
    if ticked and form.get("do") == "cancel":
        if asking := ask_first(request, form, f"jobs?{urlencode(given)}".removesuffix("?")):
            return asking
        came = Counter(_cancel_one(job_id, caller, api) for job_id in ticked)
        given.append(("came", ",".join(str(came[outcome]) for outcome in _OUTCOMES)))
    for job_id in ticked if form.get("do") == "retry" else ():
        with contextlib.suppress(UnknownJob, NotRetriable):
            job = api.jobs.get(job_id).as_json()
            if _owns(caller, job) and _may_retry(job):
                retry_job(job_id, request, caller, api)
    return go(request, f"jobs?{urlencode(given)}".removesuffix("?"))


def _cancel_one(job_id: str, caller: Submitter, api: Api) -> str:
    """Withdraw from a job, or end it. Return one of _OUTCOMES."""
    try:
        job = api.jobs.get(job_id).as_json()
        if JobState(job["state"]).finished:
            return _OVER
        if not _owns(caller, job):
            return _GONE
        everyone = _for_everyone(caller, job)
        job = cancel_job(job_id, Response(), caller, api, everyone=everyone)
    except UnknownJob:
        return _GONE
    if JobState(job["state"]).finished:
        return _ENDED if job["state"] == JobState.CANCELLED.value else _OVER
    return _STOPPING if job["cancel_requested"] else _OTHERS


@router.get("/new")
def show_form(request: Request, caller: Submitter, api: ApiDep) -> Response:
    """Show the form for a job, with the fields that the address gives."""
    given = dict(request.query_params)
    return _form(request, caller, {**given, "device": given.get("device") or _likely_device(api)})


@router.post("")
def post_job(request: Request, form: Posted, caller: Submitter, api: ApiDep) -> Response:
    """Queue the job of a form for a problem; for a model, go to its plan."""
    given = {name: value for name, value in form.items() if name != "plan"}

    def answer(body: Mapping[str, Any]) -> Response:
        if "plan" in form or is_preset(given.get("model", "")):
            plan_body(SubmitModel.model_validate(body), api)
            return go(request, f"jobs/plan?{urlencode(given)}")
        job = submit_job(SubmitJob.model_validate(body), request, Response(), caller, api)
        return go(request, f"jobs/{job['id']}")

    return _or_form(request, caller, given, answer)


@router.get("/plan")
def show_plan(request: Request, caller: Submitter, api: ApiDep) -> Response:
    """Show the problems of a model, before anything is queued."""
    return _plan(request, caller, api, dict(request.query_params))


@router.post("/plan")
def queue_plan(request: Request, form: Posted, caller: Submitter, api: ApiDep) -> Response:
    """Queue the jobs of the problems that are ticked."""
    ticked = [name.removeprefix(_TICK) for name in form if name.startswith(_TICK)]
    given = {name: value for name, value in form.items() if not name.startswith(_TICK)}
    if not ticked:
        return _plan(request, caller, api, given, "no box is ticked: tick the problems to tune")

    def answer(body: Mapping[str, Any]) -> Response:
        asked = SubmitModel.model_validate({**body, "problems": ticked})
        done = submit_model(asked, request, Response(), caller, api)
        jobs = done["jobs"]
        if not jobs:
            why = "; ".join(dict.fromkeys(one["why"] for one in done["left_out"]))
            return _plan(request, caller, api, given, f"nothing is queued: {why}")
        if len(jobs) == 1:
            return go(request, f"jobs/{jobs[0]['id']}")
        return go(request, f"jobs?{urlencode({'model': jobs[0]['request']['model']})}")

    return _or_form(request, caller, given, answer)


@router.get("/{job_id}")
def show_job(job_id: JobId, request: Request, caller: Reader, api: ApiDep) -> Response:
    """Show a job and its steps."""
    job = readable(get_job(job_id, caller, api))
    events = [event.as_json() for event in api.jobs.events(job_id, 0, MOST_EVENTS)]
    progress = get_progress(job_id, caller, api)
    winners = list_winners(job_id, caller, api) if job["state"] == "done" else None
    entries = entries_of(winners["winners"]) if winners else []
    mine = [one for one in entries if one.winner["run_id"] == job["run_id"]]
    timed = [one for one in mine if one.winner["median_us"] is not None]
    untuned = len({one.size for one in mine} - {one.size for one in timed})
    state, so_far = JobState(job["state"]), entries_so_far(progress)
    owns = _owns(caller, job)
    last_trials = api.jobs.latest_events(job_id, 1, "trials")
    lease_ends_at = as_time((job.get("stalled") or {}).get("lease_ends_at"))
    return page(
        request,
        "job",
        job=job,
        problem=job["request"]["problem"],
        seen=events[-1]["seq"] if events else 0,
        steps=steps_of(events),
        last_trials=last_trials[0].at if last_trials else None,
        ended=bool(lease_ends_at and lease_ends_at <= _now()),
        measured=job["request"]["measure"] == "gpu",
        predicted=any(one.winner["status"] == "predicted" for one in timed),
        most_attempts=MAX_ATTEMPTS,
        progress=progress,
        so_far=so_far,
        statuses=[(one.value, progress["trials"].get(one.value, 0)) for one in Status],
        tried=sum(progress["trials"].values()),
        failures=_failures(list_trials(job_id, _SOME_TRIALS, caller, api)["trials"]),
        totals=next((e["data"].get("totals") for e in events[::-1] if e["kind"] == "done"), None),
        environment=winners["environment"] if winners else None,
        entries=timed,
        untuned=untuned,
        charts=charts_of(timed) if entries else charts_of(so_far, running=True),
        speedup=speedup_of(timed),
        over=over_of(timed),
        server=server_of(timed),
        finished=state.finished,
        before=_before(job, api),
        may_cancel=not state.finished and owns,
        may_retry=owns and _may_retry(job),
        for_everyone=_for_everyone(caller, job),
    )


@router.post("/{job_id}/cancel")
def cancel(
    job_id: JobId, request: Request, form: Posted, caller: Submitter, api: ApiDep
) -> Response:
    """Withdraw from a job, or end it for all of its clients."""
    if asking := ask_first(request, form, f"jobs/{job_id}"):
        return asking
    cancel_job(job_id, Response(), caller, api, everyone=form.get("everyone") == "true")
    return go(request, f"jobs/{job_id}")


@router.post("/{job_id}/retry")
def retry(
    job_id: JobId, request: Request, form: Posted, caller: Submitter, api: ApiDep
) -> Response:
    """Queue a job again that ended without a result."""
    retry_job(job_id, request, caller, api)
    return go(request, f"jobs/{job_id}")


@router.post("/{job_id}/delete")
def delete(job_id: JobId, request: Request, form: Posted, caller: Admin, api: ApiDep) -> Response:
    """Delete a job that has ended."""
    if asking := ask_first(request, form, f"jobs/{job_id}"):
        return asking
    delete_job(job_id, caller, api)
    return go(request, "jobs")


def _plan(
    request: Request, caller: Submitter, api: ApiDep, given: Mapping[str, str], mistake: str = ""
) -> Response:
    def answer(body: Mapping[str, Any]) -> Response:
        plan = plan_body(SubmitModel.model_validate(body), api)
        status = 422 if mistake else 200
        return page(request, "plan", status, given=given, plan=plan, mistake=mistake, tick=_TICK)

    return _or_form(request, caller, given, answer)


def _or_form(
    request: Request,
    caller: Submitter,
    given: Mapping[str, str],
    answer: Callable[[Mapping[str, Any]], Response],
) -> Response:
    """Answer the body of a form; if it has a mistake, show the form again and name the mistake."""
    body = _body_of(given)
    try:
        return answer(body)
    except ValidationError as error:
        return _form(request, caller, given, mistakes_in(error, body))
    except BadInput as error:
        return _form(request, caller, given, refused_in(error, "model"))


def _form(
    request: Request,
    caller: Submitter,
    given: Mapping[str, str],
    mistakes: Mapping[str, str] | None = None,
) -> Response:
    return page(
        request,
        "job_form",
        422 if mistakes else 200,
        given={**given, "device": full_name(given.get("device", ""))},
        of_problem=is_problem(given.get("model", "")),
        mistakes=mistakes or {},
        devices=list_devices(caller)["devices"],
        models=list_models(caller)["models"],
        dtypes=[one.value for one in Dtype],
        efforts=[one.value for one in Effort],
    )


def _likely_device(api: Api) -> str:
    """Return the GPU of a living worker, else of the newest result; "" if there is neither."""
    if living := [one.info.device for one in api.fleet.workers() if one.alive and one.info.device]:
        return living[0]
    found = api.lookups.environments([device.name for device in devices()])
    newest = max(found, key=lambda one: one.newest, default=None)
    return newest.environment.device if newest else ""


def _body_of(form: Mapping[str, str]) -> dict[str, Any]:
    """Return the body that the API takes. A text that is no number stays: the API refuses it."""
    body: dict[str, Any] = dict(form)
    for name in _NUMBERS:
        if _WHOLE.fullmatch(form.get(name, "")):
            body[name] = int(form[name])
    if "batch_sizes" in form:
        parts = [part for part in re.split(r"[\s,]+", form["batch_sizes"]) if part]
        body["batch_sizes"] = [int(one) if _WHOLE.fullmatch(one) else one for one in parts]
    if "urgent" in form:
        body["urgent"] = form["urgent"] == "true"
    return body


def _owns(caller: Caller, job: Mapping[str, Any]) -> bool:
    """Say whether the caller may cancel and retry a job."""
    if caller.scope < Scope.SUBMIT:
        return False
    return caller.scope >= Scope.ADMIN or caller.name in (job["client"], *job["clients"])


def _for_everyone(caller: Caller, job: Mapping[str, Any]) -> bool:
    """Say whether a cancel of the caller ends the job for others too: only an admin may do that."""
    alone = job["clients"] == [caller.name]
    return caller.scope >= Scope.ADMIN and not alone


def _may_retry(job: Mapping[str, Any]) -> bool:
    return JobState(job["state"]) in (JobState.FAILED, JobState.DEAD, JobState.CANCELLED)


def _took_s(job: Mapping[str, Any]) -> float | None:
    """Return the seconds since a worker first had a job, until it ended or until now."""
    began, ended = as_time(job["started_at"]), as_time(job["finished_at"])
    return None if began is None else ((ended or _now()) - began).total_seconds()


def _before(job: Mapping[str, Any], api: Api) -> Mapping[str, float]:
    """Return the number of queued jobs for its device that were posted before a queued job, and the
    estimate of their GPU seconds.
    """
    posted = as_time(job["created_at"])
    if job["state"] != JobState.QUEUED.value or posted is None:
        return {"count": 0, "gpu_s": 0.0}
    query = JobQuery(job["request"]["device"], states=frozenset({JobState.QUEUED}))
    found = api.jobs.list(query, after=(posted, job["id"]), limit=MOST_EVENTS)
    return {"count": len(found), "gpu_s": sum(api.estimates.of(one) or 0.0 for one in found)}


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _failures(trials: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, int]]:
    """Return the status, first line of the detail and number of the most frequent failures."""
    found = Counter(
        (Status(trial["status"]).value, trial["detail"].strip().partition("\n")[0])
        for trial in trials
        if trial["median_us"] is None and trial["detail"]
    )
    return [(*what, count) for what, count in found.most_common(MOST_FAILURES)]

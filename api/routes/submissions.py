"""Post jobs, one or many."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response

from api.auth import Caller, Submitter, may_hurry
from api.bodies import JsonRoute
from api.errors import problem_of, problem_of_mistakes, request_id, responses
from api.pages.places import wants_page
from api.requests import job_request
from api.schemas_in import RefusedJob, SubmitJob, SubmitJobs
from api.schemas_jobs import BatchOut, SubmittedOut
from api.state import Api, ApiDep
from tuner.errors import BadInput, IdempotencyConflict
from tuner.jobs.job import Priority, Submitted
from tuner.store.submissions import Submission
from workers.tracing import current_traceparent, describe_span, span

router = APIRouter(prefix="/v1", tags=["jobs"], route_class=JsonRoute)

RETRY_S = 5  # a client should ask for the job again after so long
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        pattern=r"^[!-~]+$",
        description="Any text that identifies this submission: sent twice, it makes one job.",
    ),
]


@router.post(
    "/jobs",
    status_code=202,
    response_model=SubmittedOut,
    response_model_exclude_unset=True,  # a request has the fields of its family only
    responses={
        **responses(409, 415),
        202: {
            "description": "Accepted, and committed to the store.",
            "headers": {
                "Location": {"schema": {"type": "string"}, "description": "The job's URL."},
                "Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."},
            },
        },
    },
)
def submit_job(
    body: SubmitJob,
    request: Request,
    response: Response,
    caller: Submitter,
    api: ApiDep,
    idempotency_key: IdempotencyKey = None,
) -> dict[str, Any]:
    """Queue a tuning job. An equal job, unfinished or done in the last day, is answered instead."""
    if body.urgent:
        may_hurry(caller)
    _admit(request, api, caller, 1)
    wanted, notes = job_request(body, api.settings.service, api.fleet.workers())
    unmet = api.fleet.unmet(wanted)
    with span("submit", {"tuner.device": wanted.device}, "producer"):
        (answer,) = api.jobs.submit_all(
            [Submission(wanted, _priority(body), unmet)],
            client=caller.name,
            idempotency_key=idempotency_key,
            body_hash=hashlib.sha256(body.canonical()).hexdigest(),
            trace=current_traceparent(),
        )
        describe_span({"tuner.job.id": answer.job.id, "tuner.job.created": answer.created})
    request.scope["state"]["job_id"] = answer.job.id
    _announce([answer], api)
    response.headers["Location"] = f"/v1/jobs/{answer.job.id}"
    response.headers["Retry-After"] = str(RETRY_S)
    if answer.replayed:
        response.headers["Idempotent-Replayed"] = "true"
    return _answer(answer, notes, api)


@router.post(
    "/jobs:batch",
    response_model=BatchOut,
    response_model_exclude_unset=True,
    responses={
        **responses(409, 415),
        200: {"description": "An answer for each job. All accepted ones are in the store."},
    },
)
def submit_jobs(
    body: SubmitJobs,
    request: Request,
    response: Response,
    caller: Submitter,
    api: ApiDep,
    idempotency_key: IdempotencyKey = None,
) -> dict[str, Any]:
    """Queue up to 100 tuning jobs at once. One that is refused does not stop the others.

    One idempotency key stands for all of them.
    """
    jobs = body.read()
    if any(job.urgent for job in jobs if isinstance(job, SubmitJob)):
        may_hurry(caller)
    _admit(request, api, caller, len(jobs))
    workers, settings = api.fleet.workers(), api.settings.service
    wanted: list[Submission] = []
    items: list[dict[str, Any]] = []
    notes: list[list[str]] = []
    for one in jobs:
        if isinstance(one, RefusedJob):
            problem = problem_of_mistakes(one.errors, one.values, request)
            items.append({"job": None, "problem": problem.model_dump(exclude_defaults=True)})
            continue
        try:
            asked, said = job_request(one, settings, workers)
            wanted.append(Submission(asked, _priority(one), api.fleet.unmet(asked)))
            notes.append(said)
            items.append({"problem": None})
        except BadInput as error:
            problem = problem_of(error, request_id(request), on_page=wants_page(request.scope))
            items.append({"job": None, "problem": problem.model_dump(exclude_defaults=True)})
    with span("submit", {"tuner.jobs": len(wanted)}, "producer"):
        answers = api.jobs.submit_all(
            wanted,
            client=caller.name,
            idempotency_key=idempotency_key,
            body_hash=hashlib.sha256(body.canonical()).hexdigest(),
            trace=current_traceparent(),
        )
    if len(answers) != len(wanted):
        raise IdempotencyConflict("the same batch was answered otherwise before: use a new key")
    _announce(answers, api)
    accepted = (item for item in items if item["problem"] is None)
    for item, answer, said in zip(accepted, answers, notes, strict=True):
        item["job"] = _answer(answer, said, api)
    if answers and answers[0].replayed:
        response.headers["Idempotent-Replayed"] = "true"
    return {"jobs": items}


def _admit(request: Request, api: Api, caller: Caller, count: int) -> None:
    """Raises HTTPException above the caller's rate, or with too many jobs in the queue."""
    state = request.scope["state"]
    state["limiter"].check(api.settings.submit_rate, "submit", caller.name, state["rates"])
    api.quotas.check(caller.name, count)


def _priority(body: SubmitJob) -> Priority:
    return Priority.URGENT if body.urgent else Priority.NORMAL


def _announce(answers: Sequence[Submitted], api: Api) -> None:
    """Wake workers for the new jobs: once for each queue, as a woken worker does all it can."""
    woken = set()
    for answer in answers:
        api.metrics.submitted.labels(answer.job.request.device, str(answer.created).lower()).inc()
        request = answer.job.request
        queue = request.device, request.needs_gpu, answer.job.priority
        if answer.created and queue not in woken:
            woken.add(queue)
            api.announcer.announce(answer.job)


def _answer(answer: Submitted, notes: Sequence[str], api: Api) -> dict[str, Any]:
    waiting = api.fleet.reasons().why(answer.job)
    return {
        **answer.job.as_json(),
        "created": answer.created,
        "notes": notes,
        "waiting": waiting,
        "estimated_gpu_s": api.estimates.of(answer.job),
    }

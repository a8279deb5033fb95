"""Post jobs, list them, follow them, cancel them, queue them again and delete them."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from api.asked import asked_model, in_api_words, job_request, jobs_of, request_of_batch
from api.auth import Admin, Caller, Reader, Submitter, may_hurry
from api.bodies import JsonRoute
from api.errors import problem_of, problem_of_mistakes, request_id, responses
from api.fields import JobId
from api.pages.browser import wants_page
from api.paging import JobPage, job_position, page_of, read_cursor_of, read_job_place
from api.requests import RefusedJob, SubmitJob, SubmitJobs, SubmitModel
from api.schemas_jobs import (
    BatchOut,
    EventOut,
    JobOut,
    JobsOut,
    SubmittedModelOut,
    SubmittedOut,
)
from api.state import Api, ApiDep
from api.streams import ENDS, FollowedJob
from tuner.errors import BadInput, IdempotencyConflict, ServerUnavailable, UnusableStore
from tuner.jobs.job import JobEvent, JobRequest, Priority, Submitted
from tuner.store.keys import Scope

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=JsonRoute)
audit = logging.getLogger("tuner.api.audit")  # changes that cannot be undone, and their clients

RETRY_S = 5  # a client should ask for the job again after so long
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        pattern=r"^[!-~]+$",
        description="Any text that identifies this submission: a repetition makes no second job.",
    ),
]


@router.post(
    "",
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
    """Queue a tuning job. If an equal job is unfinished or a day old at most, return it instead."""
    if body.urgent:
        may_hurry(caller)
    _admit(request, api, caller)
    wanted, notes = job_request(body, api.settings.service, api.fleet.workers())
    (answer,) = _submit([(wanted, _priority(body))], body, caller, api, idempotency_key)
    request.scope["state"]["job_id"] = answer.job.id
    _announce([answer], response, api)
    response.headers["Location"] = f"/v1/jobs/{answer.job.id}"
    response.headers["Retry-After"] = str(RETRY_S)
    return _answer(answer, notes, api)


@router.post(
    ":batch",
    response_model=BatchOut,
    response_model_exclude_unset=True,
    responses={
        **responses(409, 415),
        200: {"description": "An answer for each job. All accepted jobs are in the store."},
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
    """Queue up to 100 tuning jobs at once. A job that is refused does not stop the others.

    The idempotency key stands for the whole batch.
    """
    jobs = body.read()
    if any(job.urgent for job in jobs if isinstance(job, SubmitJob)):
        may_hurry(caller)
    _admit(request, api, caller)
    workers, settings = api.fleet.workers(), api.settings.service
    wanted: list[tuple[JobRequest, Priority]] = []
    items: list[dict[str, Any]] = []
    notes: list[list[str]] = []
    away: dict[str, ServerUnavailable] = {}
    for one in jobs:
        try:
            if isinstance(one, RefusedJob):
                problem = problem_of_mistakes(one.errors, one.values, request)
            else:
                asked, said = request_of_batch(one, settings, workers, away)
                wanted.append((asked, _priority(one)))
                notes.append(said)
                items.append({"problem": None})
                continue
        except (BadInput, ServerUnavailable) as error:
            problem = problem_of(error, request_id(request), on_page=wants_page(request.scope))
        items.append({"job": None, "problem": problem.model_dump(exclude_defaults=True)})
    answers = _submit(wanted, body, caller, api, idempotency_key)
    # Another job than the first time may be refused: its server was away then, or is away now.
    asked_for = [(one.spec, one.device) for one, _ in wanted]
    answered = [(one.job.request.spec, one.job.request.device) for one in answers]
    if len(answers) != len(wanted) or (len(wanted) < len(jobs) and answered != asked_for):
        raise IdempotencyConflict("the same batch was answered otherwise before: use a new key")
    _announce(answers, response, api)
    accepted = (item for item in items if item["problem"] is None)
    for item, answer, said in zip(accepted, answers, notes, strict=True):
        item["job"] = _answer(answer, said, api)
    return {"jobs": items}


@router.post(
    ":model",
    response_model=SubmittedModelOut,
    response_model_exclude_unset=True,
    responses={
        **responses(409, 415),
        200: {"description": "All of these jobs are in the store, or none after an error."},
    },
)
def submit_model(
    body: SubmitModel,
    request: Request,
    response: Response,
    caller: Submitter,
    api: ApiDep,
    idempotency_key: IdempotencyKey = None,
) -> dict[str, Any]:
    """Queue a job for each problem of a model, by default only if servers read files for it.

    The idempotency key stands for all of these jobs: a repetition returns the same jobs.
    """
    if body.urgent:
        may_hurry(caller)
    _admit(request, api, caller)
    asked = asked_model(body, api.settings.service, api.fleet.workers())
    jobs = jobs_of(asked, body)
    wanted = [(one, _priority(body)) for one in jobs.requests]
    answers = _submit(wanted, body, caller, api, idempotency_key) if wanted else []
    _announce(answers, response, api)
    return {
        "jobs": [_answer(answer, [], api) for answer in answers],
        "left_out": [{"what": one.what, "why": one.why} for one in jobs.left_out],
        "notes": in_api_words(jobs.notes),
    }


def _admit(request: Request, api: Api, caller: Caller) -> None:
    """Raise HTTPException above the caller's rate."""
    state = request.scope["state"]
    state["limiter"].check(api.settings.submit_rate, "submit", caller.name)


def _submit(
    wanted: Sequence[tuple[JobRequest, Priority]],
    body: SubmitJob | SubmitJobs,
    caller: Caller,
    api: Api,
    idempotency_key: str | None,
) -> Sequence[Submitted]:
    return api.jobs.submit_all(
        wanted,
        unmet=api.fleet.reasons().unmet,
        client=caller.name,
        idempotency_key=idempotency_key,
        body_hash=hashlib.sha256(body.canonical()).hexdigest(),
        most=api.settings.queued,
    )


def _priority(body: SubmitJob) -> Priority:
    return Priority.URGENT if body.urgent else Priority.NORMAL


def _announce(answers: Sequence[Submitted], response: Response, api: Api) -> None:
    """Wake workers for the new jobs: once for each queue, as a woken worker does all it can. Say so
    in a header if the jobs were answered before.
    """
    if answers and answers[0].replayed:
        response.headers["Idempotent-Replayed"] = "true"
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


Everyone = Annotated[
    bool, Query(description="End the job for all its clients; this needs a key of scope admin.")
]


@router.get("", response_model=JobsOut, response_model_exclude_unset=True, responses=responses())
def list_jobs(page: Annotated[JobPage, Query()], caller: Reader, api: ApiDep) -> dict[str, Any]:
    """List jobs, by default the newest first."""
    query = page.query()
    after = read_cursor_of(query.digest, page.after, read_job_place)
    found = api.jobs.list(query, after=after, limit=page.limit + 1)
    jobs, cursor = page_of(found, page.limit, job_position(query))
    reasons = api.fleet.reasons()
    return {"jobs": [{**job.as_json(), **reasons.as_json(job)} for job in jobs], "next": cursor}


@router.get(
    "/{job_id}",
    response_model=JobOut,
    response_model_exclude_unset=True,
    responses=responses(404),
)
def get_job(job_id: JobId, caller: Reader, api: ApiDep) -> dict[str, Any]:
    """Return a job."""
    job = api.jobs.get(job_id)
    if job.state.finished:
        return job.as_json()
    return {**job.as_json(), **api.fleet.reasons().as_json(job)}


@router.post(
    "/{job_id}/cancel",
    response_model=JobOut,
    response_model_exclude_unset=True,
    responses={
        **responses(404),
        200: {"description": "The job has ended, or it goes on for the clients that it names."},
        202: {"model": JobOut, "description": "The job's worker was asked to stop."},
    },
)
def cancel_job(
    job_id: JobId, response: Response, caller: Submitter, api: ApiDep, everyone: Everyone = False
) -> dict[str, Any]:
    """Withdraw from a job. The job ends when its last client withdraws; its trials stay."""
    job = api.jobs.get(job_id)
    mine = caller.name in job.clients
    if caller.scope < Scope.ADMIN and (everyone or not mine):
        names = ", ".join(job.clients)
        text = f"only a key of scope admin may end the job for {names}"
        raise HTTPException(403, text)
    job = api.jobs.cancel(job_id, caller.name if mine and not everyone else None)
    response.status_code = 202 if job.cancel_requested and not job.state.finished else 200
    return job.as_json()


@router.delete("/{job_id}", status_code=204, responses=responses(404, 409))
def delete_job(job_id: JobId, caller: Admin, api: ApiDep) -> None:
    """Delete a job that has ended, and its steps. Its trials and the published winners stay."""
    job = api.jobs.delete(job_id)
    problem, device = job.request.spec, job.request.device
    extra = {"client": caller.name, "job_id": job_id, "problem": problem, "device": device}
    audit.info("deleted a job that was %s", job.state.value, extra=extra)


@router.post(
    "/{job_id}/retry",
    status_code=202,
    response_model=JobOut,
    response_model_exclude_unset=True,
    responses=responses(404, 409),
)
def retry_job(job_id: JobId, request: Request, caller: Submitter, api: ApiDep) -> dict[str, Any]:
    """Queue a dead, failed or cancelled job again, with all its attempts. Its trials count."""
    _admit(request, api, caller)
    job = api.jobs.get(job_id)
    if caller.scope < Scope.ADMIN and caller.name not in (job.client, *job.clients):
        text = f"job {job_id} was posted by {job.client}: they or a key of scope admin may retry it"
        raise HTTPException(403, text)
    job = api.jobs.retry(job_id, caller.name, api.settings.queued)
    api.announcer.announce(job)
    return job.as_json()


RECONNECT_MS = 2000  # a client waits for so long after the stream broke

LastEventId = Annotated[
    int,
    Header(
        ge=0,
        lt=1 << 31,
        description="The id of the last event received: the stream goes on after it.",
    ),
]


After = Annotated[
    int,
    Query(
        ge=0,
        lt=1 << 31,
        description="For clients that cannot send Last-Event-ID, which takes precedence.",
    ),
]


async def _stream_start(
    job_id: JobId, caller: Reader, api: ApiDep, last_event_id: LastEventId = 0, after: After = 0
) -> AsyncIterator[tuple[FollowedJob, int]]:
    """Yield the job, and the number of the event that the stream begins after.

    The status cannot be changed after the stream has begun.
    """
    seen = await run_in_threadpool(_first_seen, api, job_id, last_event_id or after)
    with api.streaming(caller.name, caller.secret, job_id) as job:
        yield job, seen


def _first_seen(api: Api, job_id: str, last_event_id: int) -> int:
    job = api.jobs.get(job_id)
    # A store restored from a backup may lack that event: then the stream begins at the first one.
    known = api.jobs.events(job_id, last_event_id - 1, 1) if last_event_id else ()
    seen = last_event_id if known else 0
    if job.state.finished and not api.jobs.events(job_id, seen, 1):
        raise HTTPException(204)  # a browser does not reconnect after a 204
    return seen


@router.get(
    "/{job_id}/events",
    response_class=EventSourceResponse,
    responses={
        **responses(404),
        200: {
            "description": "A stream. Each event has its number as `id`, its kind as `event`, and "
            "an `EventOut` as `data`."
        },
        204: {"description": "The job has ended and there are no more events."},
    },
)
async def follow_job(
    start: Annotated[tuple[FollowedJob, int], Depends(_stream_start)], caller: Reader, api: ApiDep
) -> AsyncIterator[EventOut]:
    """Follow a job to its end, from its first event or from the event after Last-Event-ID."""
    ends_at = time.monotonic() + api.settings.stream_s
    (job, seen), finished = start, False
    yield ServerSentEvent(comment="steps of a job", retry=RECONNECT_MS)  # type: ignore[misc]
    while not finished:
        events: Sequence[JobEvent] = ()
        with anyio.move_on_after(ends_at - time.monotonic()):
            try:
                events = await job.after(seen, caller.secret)
            except UnusableStore:
                return  # the client reconnects with the last id that it has
        if not events:
            return
        for event in events:
            seen = event.seq
            data = event.as_json()
            yield ServerSentEvent(data=data, event=event.kind, id=str(seen))  # type: ignore[misc]
            finished = event.kind in ENDS

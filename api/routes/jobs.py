"""Post jobs, look at them, end them."""

from __future__ import annotations

import hashlib
import time
from typing import Annotated, Any

from fastapi import APIRouter, BackgroundTasks, Header, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from api.auth import Caller, Reader, Submitter
from api.errors import responses
from api.paging import job_position, page_of, read_job_cursor
from api.requests import job_request
from api.schemas_in import JobPage, SubmitJob
from api.schemas_out import JobOut, JobsOut, SubmittedOut
from api.state import Api, ApiDep
from api.text import JobId
from tuner.jobs.job import Job, Priority, Submitted
from tuner.models.serving import Note
from tuner.store.keys import Scope

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

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
Wait = Annotated[
    int,
    Query(
        ge=0,
        le=60,
        description="Answer when the job has ended, or after so many seconds. The server may "
        "answer sooner: look at the job's state.",
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
    later: BackgroundTasks,
    caller: Submitter,
    api: ApiDep,
    idempotency_key: IdempotencyKey = None,
) -> dict[str, Any]:
    """Queue a tuning job. An equal job, unfinished or done in the last day, is answered instead."""
    state = request.scope["state"]
    state["limiter"].check(api.settings.submit_rate, "submit", caller.name, state["rates"])
    wanted, notes = job_request(body, api.settings.service)
    answer = api.jobs.submit(
        wanted,
        priority=Priority.URGENT if body.urgent else Priority.NORMAL,
        client=caller.name,
        idempotency_key=idempotency_key,
        body_hash=hashlib.sha256(body.canonical()).hexdigest(),
    )
    if answer.created:
        later.add_task(api.announcer.announce, answer.job)  # a slow broker delays no answer
    _note(request, api, answer)
    response.headers["Location"] = f"/v1/jobs/{answer.job.id}"
    response.headers["Retry-After"] = str(RETRY_S)
    if answer.replayed:
        response.headers["Idempotent-Replayed"] = "true"
    return {
        **answer.job.as_json(),
        "created": answer.created,
        "notes": [note.api if isinstance(note, Note) else note for note in notes],
    }


@router.get("", response_model=JobsOut, response_model_exclude_unset=True, responses=responses())
def list_jobs(page: Annotated[JobPage, Query()], caller: Reader, api: ApiDep) -> dict[str, Any]:
    """List jobs, by default the newest first."""
    query = page.query()
    found = api.jobs.list(query, after=read_job_cursor(page.after, query), limit=page.limit + 1)
    jobs, cursor = page_of(found, page.limit, job_position(query))
    return {"jobs": [job.as_json() for job in jobs], "next": cursor}


@router.get(
    "/{job_id}",
    response_model=JobOut,
    response_model_exclude_unset=True,
    responses=responses(404),
)
async def get_job(
    job_id: JobId, caller: Reader, request: Request, api: ApiDep, wait: Wait = 0
) -> dict[str, Any]:
    """Show a job, at once or when it has ended."""
    job = await run_in_threadpool(api.jobs.get, job_id)
    if wait and not job.state.finished:
        state, began = request.scope["state"], time.monotonic()
        if end_turn := state.get("end_turn"):  # other reading requests need not wait too
            end_turn()
        seconds = min(wait, api.settings.wait_s)
        await api.waits.until_ended(job_id, request, caller.name, seconds)
        state["waited_s"] = time.monotonic() - began
        job = await run_in_threadpool(api.jobs.get, job_id)
    return job.as_json()


@router.post(
    "/{job_id}/cancel",
    response_model=JobOut,
    response_model_exclude_unset=True,
    responses={
        **responses(404),
        202: {"model": JobOut, "description": "Its worker was asked to stop."},
    },
)
def cancel_job(job_id: JobId, response: Response, caller: Submitter, api: ApiDep) -> dict[str, Any]:
    """End a job. Its trials stay. It ends for every client whose request was answered with it."""
    _check_own(api.jobs.get(job_id), caller)
    job = api.jobs.cancel(job_id)
    response.status_code = 200 if job.state.finished else 202
    return job.as_json()


def _check_own(job: Job, caller: Caller) -> None:
    if caller.scope < Scope.ADMIN and job.client != caller.name:
        text = f"job {job.id} was posted by {job.client}: they or a key of scope admin may end it"
        raise HTTPException(403, text)


def _note(request: Request, api: Api, answer: Submitted) -> None:
    request.scope["state"]["job_id"] = answer.job.id
    device, created = answer.job.request.device, str(answer.created).lower()
    api.metrics.submitted.labels(device, created).inc()

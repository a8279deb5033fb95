"""Look at jobs, end them, queue them again and delete them."""

from __future__ import annotations

import logging
import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from api.auth import Admin, Reader, Submitter
from api.errors import responses
from api.paging import job_position, page_of, read_job_cursor
from api.schemas_jobs import JobOut, JobsOut
from api.schemas_query import JobPage
from api.state import ApiDep
from api.text import JobId
from tuner.store.keys import Scope

audit = logging.getLogger("tuner.api.audit")  # what cannot be taken back, and who did it

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

Wait = Annotated[
    int,
    Query(
        ge=0,
        le=60,
        description="Answer when the job has ended, or after so many seconds. The server may "
        "answer sooner: look at the job's state.",
    ),
]
Everyone = Annotated[
    bool, Query(description="End it for all of its clients; this needs a key of scope admin.")
]


@router.get("", response_model=JobsOut, response_model_exclude_unset=True, responses=responses())
def list_jobs(page: Annotated[JobPage, Query()], caller: Reader, api: ApiDep) -> dict[str, Any]:
    """List jobs, by default the newest first."""
    query = page.query()
    found = api.jobs.list(query, after=read_job_cursor(page.after, query), limit=page.limit + 1)
    jobs, cursor = page_of(found, page.limit, job_position(query))
    reasons = api.fleet.reasons()
    return {"jobs": [{**job.as_json(), **reasons.as_json(job)} for job in jobs], "next": cursor}


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
    if job.state.finished:
        return job.as_json()
    reasons = await run_in_threadpool(api.fleet.reasons)
    return {**job.as_json(), **reasons.as_json(job)}


@router.post(
    "/{job_id}/cancel",
    response_model=JobOut,
    response_model_exclude_unset=True,
    responses={
        **responses(404),
        200: {"description": "It has ended, or it goes on for the clients that it names."},
        202: {"model": JobOut, "description": "Its worker was asked to stop."},
    },
)
def cancel_job(
    job_id: JobId, response: Response, caller: Submitter, api: ApiDep, everyone: Everyone = False
) -> dict[str, Any]:
    """Withdraw from a job. It ends with its last client; its trials stay."""
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
    """Delete a job that has ended, and its steps. What it tried and what is published stay."""
    job = api.jobs.delete(job_id)
    problem, device = job.request.problem.spec(), job.request.device
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
    state = request.scope["state"]
    state["limiter"].check(api.settings.submit_rate, "submit", caller.name, state["rates"])
    job = api.jobs.get(job_id)
    if caller.scope < Scope.ADMIN and caller.name not in (job.client, *job.clients):
        text = f"job {job_id} was posted by {job.client}: they or a key of scope admin may retry it"
        raise HTTPException(403, text)
    job = api.jobs.retry(job_id, caller.name)
    api.announcer.announce(job)
    return job.as_json()

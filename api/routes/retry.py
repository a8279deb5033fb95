"""Queue a job again that ended without a result."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException

from api.auth import Submitter
from api.errors import responses
from api.schemas_jobs import JobOut
from api.state import ApiDep
from api.text import JobId
from tuner.store.keys import Scope

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


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

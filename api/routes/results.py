"""What came of a job: winners, trials, and the files that an engine loads."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi import Path as InPath
from starlette.exceptions import HTTPException

from api.auth import Reader
from api.errors import responses
from api.exports import Wanted, is_named
from api.paging import page_of, read_cursor
from api.schemas_in import ExportIn, Page
from api.schemas_out import TrialsOut, WinnersOut
from api.state import ApiDep
from api.text import JobId
from tuner.devices.table import find_device
from tuner.errors import UnknownDevice, UnwritableOutput
from tuner.problems.records import Winner
from tuner.problems.registry import parse_problem
from tuner.problems.results import Trial, entry_json
from tuner.store.lookups import parse_trial_cursor, trial_cursor

log = logging.getLogger("tuner.api")

router = APIRouter(prefix="/v1", tags=["results"])


@router.get(
    "/jobs/{job_id}/winners",
    response_model=WinnersOut,
    response_model_exclude_unset=True,  # a point has the fields of its family only
    responses=responses(404),
)
def list_winners(job_id: JobId, caller: Reader, api: ApiDep) -> dict[str, Any]:
    """Show what is published for a job's problem in the environment that it ran in."""
    job = api.jobs.get(job_id)
    found = api.lookups.winners_of(job.run_id) if job.run_id is not None else []
    return {
        "problem": job.request.problem.spec(),
        "environment": asdict(found[0].environment) if found else None,
        "winners": [_winner(winner) for winner in found],
    }


@router.get(
    "/jobs/{job_id}/trials",
    response_model=TrialsOut,
    response_model_exclude_unset=True,
    responses=responses(404),
)
def list_trials(
    job_id: JobId, page: Annotated[Page, Query()], caller: Reader, api: ApiDep
) -> dict[str, Any]:
    """List what a job tried, by gemm or stage, size and configuration."""
    job, after = api.jobs.get(job_id), read_cursor(page.after, parse_trial_cursor)
    run_id, most = job.run_id, page.limit + 1
    found = api.lookups.trials(run_id, after, most) if run_id is not None else []
    tried, cursor = page_of(found, page.limit, trial_cursor)
    return {"trials": [_trial(trial) for trial in tried], "next": cursor}


_EXPORT_HEADERS = {
    "ETag": ("Of the bytes. If-None-Match takes it, weak ones, lists of them, and *.", "string"),
    "X-Tuner-Left-Out": (
        "How many stored problems the export lacks, because they are only predicted, or no server "
        "could load them. `provenance/left_out,device_name=NAME.jsonl` in it lists them.",
        "integer",
    ),
}


@router.get(
    "/exports/{device}.tar",
    response_class=Response,
    responses={
        **responses(404, 409, 507),
        200: {
            "description": "The files, under one folder; equal stores give equal bytes.",
            "content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}},
            "headers": {
                name: {"description": text, "schema": {"type": kind}}
                for name, (text, kind) in _EXPORT_HEADERS.items()
            },
        },
        304: {"description": "Equal to what If-None-Match names."},
    },
)
async def download_export(
    device: Annotated[str, InPath(max_length=60, pattern=r"^[A-Za-z0-9][A-Za-z0-9 _-]*$")],
    caller: Reader,
    api: ApiDep,
    wanted: Annotated[ExportIn, Query()],
    request: Request,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Download a device's winners as a folder that the engine and its plugin are pointed at."""
    try:
        card = find_device(device)
    except UnknownDevice as error:
        raise HTTPException(404, error.in_api_words()) from None
    if end_turn := request.scope["state"].get("end_turn"):  # exports wait for one another alone
        end_turn()
    problem = parse_problem(wanted.problem) if wanted.problem is not None else None
    try:
        found = await api.exports.get(Wanted(card, wanted.engine, problem, wanted.allow_predicted))
    except UnwritableOutput as error:
        log.error("an export failed: %s", error)
        text = "the server cannot write its temporary files: its operator must make room for them"
        raise HTTPException(507, text) from None
    headers = {
        "ETag": found.etag,
        # The answer depends on the store, and on the key that was sent with the request.
        "Cache-Control": "private, no-cache",
        "Content-Disposition": f'attachment; filename="{found.name}.tar"',
        "X-Tuner-Left-Out": str(found.left_out),
    }
    # A client may send several of these headers; the parameter has one.
    if if_none_match and is_named(found.etag, request.headers.getlist("If-None-Match")):
        return Response(status_code=304, headers=headers)
    return Response(found.data, media_type="application/x-tar", headers=headers)


def _trial(trial: Trial) -> dict[str, Any]:
    measured = trial.measurement
    return {
        **trial.candidate.point.as_json(),
        "config": dict(trial.candidate.config),
        "shared_bytes": trial.compiled.shared_bytes,
        "n_regs": trial.compiled.n_regs,
        "n_spills": trial.compiled.n_spills,
        "status": measured.status,
        "median_us": measured.median_us,
        "min_us": measured.min_us,
        "samples": measured.samples,
        "compile_status": trial.compiled.status,
        "detail": measured.detail or trial.compiled.detail,
    }


def _winner(winner: Winner) -> dict[str, Any]:
    return {
        **winner.entry.point.as_json(),
        **entry_json(winner.entry),
        "run_id": winner.run_id,
        "published_at": winner.published_at,
    }

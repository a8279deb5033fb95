"""Results of jobs: winners, trials, exports and bundles."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi import Path as InPath
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from api.auth import Admin, Reader
from api.bodies import JsonRoute
from api.bundles import BundleRequest, read_posted
from api.errors import responses, said_of
from api.exports import Archive, ExportRequest, is_named
from api.fields import JobId
from api.pages.browser import wants_page
from api.paging import ExportIn, Page, ResultOf, WinnersQuery, page_of, read_cursor
from api.requests import BundleIn
from api.schemas_jobs import (
    CurrentWinnersOut,
    ProgressOut,
    ResultsOut,
    TrialsOut,
    WinnersOut,
)
from api.state import Api, ApiDep
from api.streams import progress_of
from tuner.deploy.bundle.build import Bundle
from tuner.devices.table import find_device
from tuner.engines.engine import parse_spec
from tuner.errors import UnknownDevice, UnwritableOutput
from tuner.models.served_as import models_of
from tuner.problems.registry import family_of, parse_problem
from tuner.problems.results import Environment, Trial, Winner, entry_json
from tuner.store.current_winners import current_winners
from tuner.store.result_files import winner_json
from tuner.store.results import parse_trial_cursor, trial_cursor
from workers.coverage import WatchState, newest_environments, why_stale

log = logging.getLogger("tuner.api")
audit = logging.getLogger("tuner.api.audit")  # changes that cannot be undone, and their clients

router = APIRouter(prefix="/v1", tags=["results"], route_class=JsonRoute)

RunId = Annotated[int, InPath(ge=1, lt=1 << 31)]


@router.get(
    "/jobs/{job_id}/winners",
    response_model=WinnersOut,
    response_model_exclude_unset=True,  # a point has the fields of its family only
    responses=responses(404),
)
def list_winners(job_id: JobId, caller: Reader, api: ApiDep) -> dict[str, Any]:
    """Return the winners published for a job's problem, in the environment that the job ran in."""
    job = api.jobs.get(job_id)
    found = api.results.winners_of(job.run_id) if job.run_id is not None else []
    return {
        "problem": job.request.spec,
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
    """List the trials of a job, by gemm or stage, size and configuration."""
    run_id = api.jobs.get(job_id).run_id
    return {"trials": [], "next": None} if run_id is None else _trials(run_id, page, api)


@router.get(
    "/runs/{run_id}/trials",
    response_model=TrialsOut,
    response_model_exclude_unset=True,
    responses=responses(404),
)
def list_run_trials(
    run_id: RunId, page: Annotated[Page, Query()], caller: Reader, api: ApiDep
) -> dict[str, Any]:
    """List the trials of a run, by gemm or stage, size and configuration."""
    return _trials(run_id, page, api)


@router.get(
    "/jobs/{job_id}/progress",
    response_model=ProgressOut,
    response_model_exclude_unset=True,
    responses=responses(404),
)
def get_progress(job_id: JobId, caller: Reader, api: ApiDep) -> dict[str, Any]:
    """Return a job's numbers of trials, the time left and the best time at each point."""
    return progress_of(api.jobs.get(job_id), api.jobs, api.results, api.fleet.reasons())


@router.get(
    "/results",
    response_model=ResultsOut,
    response_model_exclude_unset=True,
    responses=responses(404),
)
def get_result(wanted: Annotated[ResultOf, Query()], caller: Reader, api: ApiDep) -> dict[str, Any]:
    """Return the winners published for a problem on a device, in each of its environments."""
    problem, device = parse_problem(wanted.problem), find_device(wanted.device).name
    found = api.results.winners_at(problem, device, wanted.engine)
    if not found:
        raise HTTPException(404, f"nothing is published for this problem on {device}")
    return {
        "problem": problem.spec(),
        "family": family_of(problem).name,
        "models": list(models_of(problem)),
        "device": device,
        "engine": wanted.engine,
        "environments": _histories(found, api),
    }


@router.get("/winners", response_model=CurrentWinnersOut, responses=responses())
def list_current_winners(
    wanted: Annotated[WinnersQuery, Query()], caller: Reader, api: ApiDep
) -> dict[str, Any]:
    """List the winners that an export for a device and an engine would choose among."""
    name, version = parse_spec(wanted.engine)
    device = find_device(wanted.device).name
    found = api.results.winners(device=device, engine=name, engine_version=version)
    return {"winners": list(map(winner_json, found))}


@router.delete("/results", status_code=204, responses=responses(404))
def withdraw_result(wanted: Annotated[ResultOf, Query()], caller: Admin, api: ApiDep) -> None:
    """Withdraw the published result of a problem on a device. Its trials stay."""
    problem, device = parse_problem(wanted.problem), find_device(wanted.device).name
    count = api.results.withdraw(problem, device, wanted.engine)
    if not count:
        raise HTTPException(404, f"nothing is published for this problem on {device}")
    extra = {"client": caller.name, "problem": problem.spec(), "device": device}
    audit.info("withdrew %d entries", count, extra={**extra, "engine": wanted.engine})
    api.matrix.forget()


def _histories(found: Sequence[Winner], api: Api) -> list[dict[str, Any]]:
    """Return the winners of a problem on a device by environment, the newest environment first."""
    device, problem = found[0].environment.device, found[0].problem
    by_place: dict[Environment, list[Winner]] = {}
    for winner in found:
        by_place.setdefault(winner.environment, []).append(winner)
    newest = newest_environments(api.lookups.environments({device}))
    current = set(map(id, current_winners(found)))
    histories = []
    for place, winners in by_place.items():
        why = why_stale(place, problem.family, newest)
        histories.append(
            {
                "environment": asdict(place),
                "standing": (WatchState.STALE if why else WatchState.TUNED).value,
                "why": why,
                "winners": [_winner(winner) for winner in winners],
                "current": any(id(winner) in current for winner in winners),
            }
        )
    return sorted(histories, key=lambda one: one["winners"][0]["published_at"], reverse=True)


ExportDevice = Annotated[str, InPath(max_length=60, pattern=r"^[A-Za-z0-9][A-Za-z0-9 _-]*$")]
_EXPORT_HEADERS = {
    "ETag": {
        "description": "The tag of the bytes. If-None-Match takes strong and weak tags, lists of "
        "tags, and *.",
        "schema": {"type": "string"},
    },
    "X-Tuner-Left-Out": {
        "description": "The number of stored problems that the export lacks, because they are only "
        "predicted, no server could load them, several ask for the same file, or servers are as "
        "fast without them. `provenance/left_out,device_name=NAME.jsonl` in it lists them.",
        "schema": {"type": "integer"},
    },
    "X-Tuner-Server-Flags": {
        "description": "The flags and variables that the files need, besides `server_args`: the "
        "files were measured to be faster with them. Empty if none are needed.",
        "schema": {"type": "string"},
    },
}


@router.get(
    "/exports/{device}.tar",
    response_class=Response,
    responses={
        **responses(404, 409, 507),
        200: {
            "description": "A tar of the files in a folder; equal stores give equal bytes.",
            "content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}},
            "headers": _EXPORT_HEADERS,
        },
        304: {"description": "If-None-Match names the present tag."},
    },
)
async def download_export(
    device: ExportDevice,
    caller: Reader,
    api: ApiDep,
    wanted: Annotated[ExportIn, Query()],
    request: Request,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Download a device's winners as a folder to point the engine and its plugin at."""
    found = await export_of(device, api, wanted, request)
    headers = {
        "ETag": found.etag,
        # The answer depends on the store, and on the key that was sent with the request.
        "Cache-Control": "private, no-cache",
        "Content-Disposition": f'attachment; filename="{found.name}.tar"',
        "X-Tuner-Left-Out": str(found.left_out),
        "X-Tuner-Server-Flags": "; ".join(found.flags),
    }
    # A client may send several of these headers; the parameter has one.
    if if_none_match and is_named(found.etag, request.headers.getlist("If-None-Match")):
        return Response(status_code=304, headers=headers)
    headers["Content-Length"] = str(found.size)
    return StreamingResponse(found.sent(), media_type="application/x-tar", headers=headers)


async def export_of(device: str, api: Api, wanted: ExportIn, request: Request) -> Archive:
    """Return the archive of a device's winners.

    Raises HTTPException 404 for an unknown device, and the errors of making an export.
    """
    try:
        card = find_device(device)
    except UnknownDevice as error:
        raise HTTPException(404, said_of(error, on_page=wants_page(request.scope))) from None
    if end_turn := request.scope["state"].get("end_turn"):  # exports wait for one another alone
        end_turn()
    problem = parse_problem(wanted.problem) if wanted.problem is not None else None
    try:
        return await api.exports.get(
            ExportRequest(card, wanted.engine, problem, wanted.allow_predicted, wanted.server_args)
        )
    except UnwritableOutput as error:
        log.error("an export failed: %s", error)
        text = "the server cannot write its temporary files: its operator must make room for them"
        raise HTTPException(507, text) from None


def _trials(run_id: int, page: Page, api: Api) -> dict[str, Any]:
    after = read_cursor(page.after, parse_trial_cursor)
    found = api.results.trials_page(run_id, after, page.limit + 1)
    tried, cursor = page_of(found, page.limit, trial_cursor)
    return {"trials": [_trial(trial) for trial in tried], "next": cursor}


def _trial(trial: Trial) -> dict[str, Any]:
    measured = trial.measurement
    return {
        **trial.candidate.point.as_json(),
        "backend": trial.candidate.backend,
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
    problem, point = winner.problem, winner.entry.point
    card = find_device(winner.environment.device)
    return {
        **point.as_json(),
        **entry_json(winner.entry),
        "least_us": family_of(problem).least_us(problem, point, card),
        "run_id": winner.run_id,
        "published_at": winner.published_at,
    }


MEDIA = "application/gzip"


@router.post(
    "/bundles",
    response_class=Response,
    responses={
        **responses(409, 415),
        200: {
            "description": "The archive; equal stores give equal bytes.",
            "content": {MEDIA: {"schema": {"type": "string", "format": "binary"}}},
            "headers": {
                "Content-Disposition": {
                    "description": "The name of the archive.",
                    "schema": {"type": "string"},
                },
            },
        },
    },
)
async def make_archive(body: BundleIn, caller: Reader, api: ApiDep, request: Request) -> Response:
    """Pack a device's winners with launch scripts and checks for a cluster, as a .tar.gz."""
    return archive_of(await bundle_of(body, api, request))


async def bundle_of(body: BundleIn, api: ApiDep, request: Request) -> Bundle:
    """Return the bundle that a body asks for."""
    if end_turn := request.scope["state"].get("end_turn"):  # bundles wait for one another alone
        end_turn()
    device = find_device(body.device)
    cluster = await run_in_threadpool(read_posted, body.cluster)
    asked = BundleRequest(body.cluster, cluster, device, body.allow_predicted, body.allow_missing)
    return await api.bundles.get(asked)


def archive_of(bundle: Bundle) -> Response:
    """Return a bundle as a download."""
    name = {"Content-Disposition": f'attachment; filename="{bundle.name}.tar.gz"'}
    return Response(bundle.archive, media_type=MEDIA, headers={**name, "Cache-Control": "no-store"})

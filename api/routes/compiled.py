"""Compile results of workers for workers: see docs/operations.md, "Compile ahead"."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Request, Response
from fastapi import Path as InPath
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from api.auth import Reader, Submitter
from api.compiled import CompiledResults
from api.errors import responses
from api.state import Api, ApiDep
from tuner.compile.server_storage import PATH

router = APIRouter(prefix=PATH.rstrip("/"), tags=["workers"])

Digest = Annotated[
    str,
    InPath(
        pattern=r"^[0-9a-f]{64}$",
        description="The SHA-256 of everything that decides the result, in hexadecimal.",
    ),
]
_SCHEMA = {"type": "string", "format": "binary", "minLength": 1}
_BYTES = {"application/octet-stream": {"schema": _SCHEMA}}


@router.get(
    "/{digest}",
    response_class=Response,
    responses={**responses(404, 409), 200: {"description": "As it was put.", "content": _BYTES}},
)
def get_compiled(digest: Digest, caller: Reader, api: ApiDep) -> Response:
    """Download what a worker compiled. Readers check it with a key that the server lacks."""
    found = _results(api).get(digest)
    if found is None:
        raise HTTPException(404, "nobody has put this compile result here, or it was deleted")
    return Response(found, media_type="application/octet-stream")


@router.put(
    "/{digest}",
    status_code=204,
    response_class=Response,
    responses=responses(404, 409, 413, 415),
    openapi_extra={"requestBody": {"required": True, "content": _BYTES}},
)
async def put_compiled(
    digest: Digest, request: Request, later: BackgroundTasks, caller: Submitter, api: ApiDep
) -> None:
    """Keep what a worker compiled, for other workers. What was used least recently is deleted."""
    results = _results(api)
    data = await request.body()
    if not data:
        raise HTTPException(422, "send the bytes of the compile result")
    if await run_in_threadpool(results.put, digest, data):
        later.add_task(results.trim)


def _results(api: Api) -> CompiledResults:
    if api.compiled is None:
        text = "this server keeps no compile results: its operator can set TUNER_API_CACHE_GB"
        raise HTTPException(409, text)
    return api.compiled

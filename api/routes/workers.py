"""Which workers there are, and which may take jobs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from fastapi import APIRouter, Path

from api.auth import Admin, Reader
from api.errors import responses
from api.schemas_out import WorkersOut
from api.state import Api, ApiDep

router = APIRouter(prefix="/v1/workers", tags=["workers"])

WorkerName = Annotated[
    str,
    Path(
        min_length=1,
        max_length=200,
        pattern=r"^[A-Za-z0-9@:._-]+$",
        description="A worker's name or id, or a host for all of its workers.",
    ),
]


@router.get("", response_model=WorkersOut, responses=responses())
def list_workers(caller: Reader, api: ApiDep) -> dict[str, Any]:
    """List the workers: what each can do, and what it does now."""
    return {"workers": [one.as_json() for one in api.workers.list()]}


@router.post("/{name}/drain", response_model=WorkersOut, responses=responses(404))
def drain_workers(name: WorkerName, caller: Admin, api: ApiDep) -> dict[str, Any]:
    """Let workers finish their jobs and take no more, as before an upgrade."""
    return _some(api.workers.drain(name), api)


@router.post("/{name}/resume", response_model=WorkersOut, responses=responses(404))
def resume_workers(name: WorkerName, caller: Admin, api: ApiDep) -> dict[str, Any]:
    """Let workers take jobs again that were drained or set aside."""
    return _some(api.workers.resume(name), api)


def _some(ids: Collection[str], api: Api) -> dict[str, Any]:
    return {"workers": [one.as_json() for one in api.workers.list() if one.info.id in ids]}

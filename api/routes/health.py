"""Whether the server is there, and what it counts."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from api.auth import Reader
from api.errors import responses
from api.metrics import CONTENT_TYPE
from api.schemas_out import StatusOut
from api.state import ApiDep

router = APIRouter(tags=["health"])


@router.get("/healthz", response_model=StatusOut)
async def get_health() -> dict[str, str]:
    """Say that the process answers."""
    return {"status": "ok"}


_NOT_READY: dict[int | str, Any] = {status: responses()[status] for status in (503, 507)}


@router.get("/readyz", response_model=StatusOut, responses=_NOT_READY)
async def get_readiness(api: ApiDep) -> dict[str, str]:
    """Say whether jobs can be stored, within 2 seconds."""
    await api.readiness.check()
    return {"status": "ok"}


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        **responses(),
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
    },
)
def get_metrics(caller: Reader, api: ApiDep) -> Response:
    """Show the counters, in Prometheus' text format."""
    return Response(api.metrics.text(), media_type=CONTENT_TYPE)

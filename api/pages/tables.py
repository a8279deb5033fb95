"""The devices and models that are known by name."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from api.auth import Reader
from api.pages.render import page
from api.routes.tables import list_devices, list_models

router = APIRouter(include_in_schema=False)


@router.get("/devices")
def show_devices(request: Request, caller: Reader) -> Response:
    """The GPUs that can be tuned for."""
    return page(request, "devices", devices=list_devices(caller)["devices"])


@router.get("/models")
def show_models(request: Request, caller: Reader) -> Response:
    """The models that are known by name."""
    return page(request, "models", models=list_models(caller)["models"])

"""The service itself: its health, workers and keys, and the tables of devices and models."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from api.asked import asked_model, in_api_words, plan_of
from api.auth import Admin, Reader
from api.bodies import JsonRoute
from api.errors import responses
from api.paging import PlanQuery
from api.requests import KeyIn, SubmitModel
from api.schemas_jobs import PlanOut
from api.schemas_service import DevicesOut, KeysOut, ModelsOut, NewKeyOut, StatusOut, WorkersOut
from api.state import Api, ApiDep
from tuner.devices.table import devices
from tuner.models.table import presets
from tuner.store.api_key import ApiKey, parse_expiry, parse_scopes, scope_names
from tuner.store.database import utc_now
from tuner.targets import LeftOut, families_of, not_known
from workers.metrics import CONTENT_TYPE

health = APIRouter(tags=["health"])


@health.get("/healthz", response_model=StatusOut)
async def get_health() -> dict[str, str]:
    """Say that the process answers."""
    return {"status": "ok"}


@health.get("/readyz", response_model=StatusOut, responses={503: responses()[503]})
async def get_readiness(api: ApiDep) -> dict[str, str]:
    """Say whether jobs can be stored, within 2 seconds."""
    await api.readiness.check()
    return {"status": "ok"}


@health.get(
    "/metrics",
    response_class=Response,
    responses={
        **responses(),
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
    },
)
def get_metrics(caller: Reader, api: ApiDep) -> Response:
    """Return the counters, in Prometheus' text format."""
    return Response(api.metrics.text(), media_type=CONTENT_TYPE)


workers = APIRouter(prefix="/v1/workers", tags=["workers"])

WorkerName = Annotated[
    str,
    Path(
        min_length=1,
        max_length=200,
        pattern=r"^[A-Za-z0-9@:._-]+$",
        description="A worker's name or id, or a host for all of its workers.",
    ),
]


@workers.get("", response_model=WorkersOut, responses=responses())
def list_workers(caller: Reader, api: ApiDep) -> dict[str, Any]:
    """List the workers: their abilities and their present jobs."""
    return {"workers": [one.as_json() for one in api.workers.list()]}


@workers.post("/{name}/drain", response_model=WorkersOut, responses=responses(404))
def drain_workers(name: WorkerName, caller: Admin, api: ApiDep) -> dict[str, Any]:
    """Drain workers: they finish their jobs and take no more, as before an upgrade."""
    return _some(api.workers.drain(name), api)


@workers.post("/{name}/resume", response_model=WorkersOut, responses=responses(404))
def resume_workers(name: WorkerName, caller: Admin, api: ApiDep) -> dict[str, Any]:
    """Resume workers that were drained or set aside: they take jobs again."""
    return _some(api.workers.resume(name), api)


def _some(ids: Collection[str], api: Api) -> dict[str, Any]:
    return {"workers": [one.as_json() for one in api.workers.list() if one.info.id in ids]}


keys = APIRouter(prefix="/v1/keys", tags=["keys"], route_class=JsonRoute)

KeyName = Annotated[str, Path(min_length=1, max_length=60, pattern=r"^[A-Za-z0-9_-]+$")]


@keys.get("", response_model=KeysOut, responses=responses())
def list_keys(caller: Admin, api: ApiDep) -> dict[str, Any]:
    """List the keys, including revoked keys, without their secrets."""
    return {"keys": [_key(one) for one in api.keys.list()]}


@keys.post("", status_code=201, response_model=NewKeyOut, responses=responses(415))
def add_key(body: KeyIn, answer: Response, caller: Admin, api: ApiDep) -> dict[str, Any]:
    """Create a key. Only this answer has its secret: the store keeps a hash."""
    scope, urgent = parse_scopes(body.scope)
    ends = None if body.expires is None else parse_expiry(body.expires, utc_now())
    token = api.keys.add(body.name, scope, urgent=urgent, expires_at=ends)
    return _new(body.name, token, answer, api)


@keys.post("/{name}/rotate", response_model=NewKeyOut, responses=responses(404))
def rotate_key(name: KeyName, answer: Response, caller: Admin, api: ApiDep) -> dict[str, Any]:
    """Give a key a new secret. The old secret is refused within two seconds, for good."""
    return _new(name, api.keys.rotate(name), answer, api)


@keys.delete("/{name}", status_code=204, responses=responses(404, 409))
def revoke_key(name: KeyName, caller: Admin, api: ApiDep) -> None:
    """Revoke a key: it is refused within two seconds, for good. The last admin key stays."""
    api.keys.revoke(name)


def _new(name: str, token: str, answer: Response, api: Api) -> dict[str, Any]:
    answer.headers["Cache-Control"] = "no-store"
    key = next(one for one in api.keys.list() if one.name == name)
    return {**_key(key), "key": token}


def _key(key: ApiKey) -> dict[str, Any]:
    times = ("created_at", "last_used_at", "expires_at", "revoked_at")
    return {
        "name": key.name,
        "scopes": scope_names(key.scope, key.urgent),
        "state": key.state(utc_now()),
        **{name: getattr(key, name) for name in times},
    }


tables = APIRouter(prefix="/v1", tags=["tables"])


@tables.get("/devices", response_model=DevicesOut, responses=responses())
def list_devices(caller: Reader) -> dict[str, Any]:
    """List the GPUs that can be tuned for."""
    return {"devices": [device.as_json() for device in devices()]}


@tables.get("/models", response_model=ModelsOut, responses=responses())
def list_models(caller: Reader) -> dict[str, Any]:
    """List the models known by name."""
    return {"models": _models()}


@tables.get("/plan", response_model=PlanOut, responses=responses())
def plan_model(asked: Annotated[PlanQuery, Query()], caller: Reader, api: ApiDep) -> dict[str, Any]:
    """Return which kernel servers run for each problem of a model, and the gain of tuning it."""
    return plan_body(asked.body(), api)


def plan_body(body: SubmitModel, api: Api) -> dict[str, Any]:
    """Return the plan of the model of a body. Raises BadInput."""
    asked = asked_model(body, api.settings.service, api.fleet.workers())
    notes = [note for target in asked.targets for note in target.notes]
    left_out = [note for note in notes if isinstance(note, LeftOut)]
    return {
        **replace(plan_of(asked, api), not_known=not_known(notes)).as_json(),
        "engine": asked.engine,
        "left_out": [{"what": one.what, "why": one.why} for one in left_out],
        "notes": in_api_words(note for note in notes if not isinstance(note, LeftOut)),
    }


@cache
def _models() -> list[dict[str, Any]]:
    return [
        {**model.as_json(), "families": [one.name for one in families_of(model.name)]}
        for model in presets()
    ]


routers = (workers, keys, tables, health)

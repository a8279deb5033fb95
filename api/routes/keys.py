"""The service's keys: which there are; making, replacing and revoking them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from api.auth import Admin
from api.bodies import JsonRoute
from api.errors import responses
from api.schemas_in import KeyIn
from api.schemas_out import KeysOut, NewKeyOut
from api.state import Api, ApiDep
from tuner.store.api_key import ApiKey, parse_expiry, parse_scopes, scope_names
from tuner.store.database import utc_now

router = APIRouter(prefix="/v1/keys", tags=["keys"], route_class=JsonRoute)

KeyName = Annotated[str, Path(min_length=1, max_length=60, pattern=r"^[A-Za-z0-9_-]+$")]


@router.get("", response_model=KeysOut, responses=responses())
def list_keys(caller: Admin, api: ApiDep) -> dict[str, Any]:
    """List the keys, also the revoked ones, without their secrets."""
    return {"keys": [_key(one) for one in api.keys.list()]}


@router.post("", status_code=201, response_model=NewKeyOut, responses=responses(415))
def add_key(body: KeyIn, answer: Response, caller: Admin, api: ApiDep) -> dict[str, Any]:
    """Make a key. The answer alone has its secret: only a hash is stored."""
    scope, urgent = parse_scopes(body.scope)
    ends = None if body.expires is None else parse_expiry(body.expires, utc_now())
    token = api.keys.add(body.name, scope, urgent=urgent, expires_at=ends)
    return _new(body.name, token, answer, api)


@router.post("/{name}/rotate", response_model=NewKeyOut, responses=responses(404))
def rotate_key(name: KeyName, answer: Response, caller: Admin, api: ApiDep) -> dict[str, Any]:
    """Give a key a new secret. The old one is refused within two seconds, for good."""
    return _new(name, api.keys.rotate(name), answer, api)


@router.delete("/{name}", status_code=204, responses=responses(404, 409))
def revoke_key(name: KeyName, caller: Admin, api: ApiDep) -> None:
    """Revoke a key: it is refused within two seconds, for good. The last of scope admin stays."""
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

"""Which keys there are. `tuner keys` makes and revokes them, on the server's machine."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from api.auth import Admin
from api.errors import responses
from api.schemas_out import KeysOut
from api.state import ApiDep
from tuner.store.api_key import ApiKey, scope_names
from tuner.store.database import utc_now

router = APIRouter(prefix="/v1/keys", tags=["keys"])


@router.get("", response_model=KeysOut, responses=responses())
def list_keys(caller: Admin, api: ApiDep) -> dict[str, Any]:
    """List the keys, also the revoked ones, without their secrets."""
    return {"keys": [_key(one) for one in api.keys.list()]}


def _key(key: ApiKey) -> dict[str, Any]:
    times = ("created_at", "last_used_at", "expires_at", "revoked_at")
    return {
        "name": key.name,
        "scopes": scope_names(key.scope, key.urgent),
        "state": key.state(utc_now()),
        **{name: getattr(key, name) for name in times},
    }

"""Keys: who may use the service. A new secret is shown once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from api.auth import Admin
from api.pages.forms import Posted, ask_first, mistakes_in, refused_in
from api.pages.render import go, page
from api.requests import KeyIn
from api.routes.service import KeyName, add_key, list_keys, revoke_key, rotate_key
from api.state import ApiDep
from tuner.errors import BadInput

router = APIRouter(prefix="/keys", include_in_schema=False)


@router.get("")
def show_keys(request: Request, caller: Admin, api: ApiDep) -> Response:
    """Who may use the service."""
    return _keys(request, caller, api)


@router.post("")
def make_key(request: Request, form: Posted, caller: Admin, api: ApiDep) -> Response:
    """Make a key and show its secret once; with a mistake, say what it is."""
    try:
        made = add_key(KeyIn.model_validate(form), Response(), caller, api)
    except ValidationError as error:
        return _keys(request, caller, api, given=form, mistakes=mistakes_in(error, form))
    except BadInput as error:
        return _keys(request, caller, api, given=form, mistakes=refused_in(error, "name"))
    return _keys(request, caller, api, made=made)


@router.post("/{name}/rotate")
def replace_key(
    name: KeyName, request: Request, form: Posted, caller: Admin, api: ApiDep
) -> Response:
    """Give a key a new secret and show it once."""
    if asking := ask_first(request, form, "keys"):
        return asking
    return _keys(request, caller, api, made=rotate_key(name, Response(), caller, api))


@router.post("/{name}/revoke")
def end_key(name: KeyName, request: Request, form: Posted, caller: Admin, api: ApiDep) -> Response:
    """Revoke a key."""
    if asking := ask_first(request, form, "keys"):
        return asking
    revoke_key(name, caller, api)
    return go(request, "keys")


def _keys(
    request: Request,
    caller: Admin,
    api: ApiDep,
    *,
    made: Mapping[str, Any] | None = None,
    given: Mapping[str, str] | None = None,
    mistakes: Mapping[str, str] | None = None,
) -> Response:
    return page(
        request,
        "keys",
        422 if mistakes else 200,
        keys=list_keys(caller, api)["keys"],
        made=made,
        given=given or {},
        mistakes=mistakes or {},
    )

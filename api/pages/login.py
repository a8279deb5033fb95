"""Log in and out, sessions, and keys."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from api.auth import Admin, Reader, caller_of, too_many_wrong
from api.keys import TooManyWrong
from api.pages.browser import checked_return, clear_session, is_same_origin, session_of, set_session
from api.pages.forms import Posted, ask_first, mistakes_in, refused_in
from api.pages.render import KEPT, go, login_form, page
from api.requests import KeyIn
from api.routes.service import KeyName, add_key, list_keys, revoke_key, rotate_key
from api.state import Api, ApiDep
from tuner.errors import BadInput

router = APIRouter(include_in_schema=False)

Next = Annotated[str, Query(max_length=2000)]
Once = Annotated[str, Query(max_length=200)]


@router.get("/login")
async def show_login(request: Request, api: ApiDep, next: Next = "", once: Once = "") -> Response:  # noqa: A002
    """Show the form for a key; or, with the secret of a link, begin the session that it gives."""
    if not once or request.scope.get("head"):
        return login_form(request, next=checked_return(next))
    try:
        name = api.links.take(once, _address(request))
    except TooManyWrong as error:
        raise too_many_wrong(error) from None
    if name is None:
        text = "This link was used before, or is too old. Log in with a key instead."
        return login_form(request, 403, problem=text)
    # A redirect would lose the cookie where the link was opened from another site, such as a mail.
    token = await _start(request, api, name)
    answer = page(request, "welcome", next="")
    set_session(answer, request.headers, token)
    return answer


@router.post("/login")
async def log_in(request: Request, api: ApiDep) -> Response:
    """Begin a session of the key in a form; then go on, or show the form that waited for it."""
    if not is_same_origin(request.headers):
        raise HTTPException(403, "this form was not sent by a page of this server")
    form: dict[str, str] = request.scope["state"]["form"]
    after, again = (checked_return(form.get(name, "")[:2000]) for name in ("next", "again"))
    kept = {name[len(KEPT) :]: form[name] for name in form if name.startswith(KEPT)}
    key = form.get("key", "").strip()
    try:
        found = await api.known_keys.find(api.keys, key, _address(request), "/login")
        caller = caller_of(found)
    except TooManyWrong as error:
        raise too_many_wrong(error) from None
    except HTTPException as error:
        text = f"{error.detail[:1].upper()}{error.detail[1:]}."
        return login_form(request, 403, problem=text, next=after, again=again, kept=kept)
    token = await _start(request, api, caller.name)
    request.scope["state"].update(session=token, caller=caller)
    answer = (
        page(request, "again", again=again, kept=kept, too_old=False)
        if again
        else go(request, after)
    )
    set_session(answer, request.headers, token)
    return answer


@router.post("/logout")
async def log_out(request: Request, api: ApiDep, caller: Reader, form: Posted) -> Response:
    """End the session."""
    if session := session_of(request.headers):
        await run_in_threadpool(api.sessions.end, session)
        api.known_sessions.forget(session)
    answer = go(request, "login")
    clear_session(answer, request.headers)
    return answer


async def _start(request: Request, api: Api, key_name: str) -> str:
    """Return the token of a new session, which replaces the browser's old session."""
    if old := session_of(request.headers):
        await run_in_threadpool(api.sessions.end, old)
        api.known_sessions.forget(old)
    return await run_in_threadpool(api.sessions.start, key_name)


def _address(request: Request) -> str:
    return request.client.host if request.client else "?"


audit = logging.getLogger("tuner.api.audit")  # changes that cannot be undone, and their clients


@router.get("/sessions")
def show_sessions(request: Request, caller: Reader, api: ApiDep) -> Response:
    """List the sessions of the key that the browser has logged in with."""
    token = session_of(request.headers)
    return page(request, "sessions", sessions=api.sessions.of_same_key(token) if token else [])


@router.post("/sessions/end-others")
def end_others(request: Request, form: Posted, caller: Reader, api: ApiDep) -> Response:
    """End all other sessions of the key. Event streams and other servers notice soon."""
    if asking := ask_first(request, form, "sessions"):
        return asking
    if token := session_of(request.headers):
        count = api.sessions.end_others(token)
        audit.info("ended %d other sessions", count, extra={"client": caller.name})
    return go(request, "sessions")


keys = APIRouter(prefix="/keys", include_in_schema=False)


@keys.get("")
def show_keys(request: Request, caller: Admin, api: ApiDep) -> Response:
    """List the keys."""
    return _keys(request, caller, api)


@keys.post("")
def make_key(request: Request, form: Posted, caller: Admin, api: ApiDep) -> Response:
    """Create a key and show its secret once; after a mistake, name the mistake."""
    try:
        made = add_key(KeyIn.model_validate(form), Response(), caller, api)
    except ValidationError as error:
        return _keys(request, caller, api, given=form, mistakes=mistakes_in(error, form))
    except BadInput as error:
        return _keys(request, caller, api, given=form, mistakes=refused_in(error, "name"))
    return _keys(request, caller, api, made=made)


@keys.post("/{name}/rotate")
def replace_key(
    name: KeyName, request: Request, form: Posted, caller: Admin, api: ApiDep
) -> Response:
    """Give a key a new secret and show it once."""
    if asking := ask_first(request, form, "keys"):
        return asking
    return _keys(request, caller, api, made=rotate_key(name, Response(), caller, api))


@keys.post("/{name}/revoke")
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

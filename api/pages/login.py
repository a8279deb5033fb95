"""Log in with a key or with a link that works once, and log out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response

from api.auth import Reader, caller_of, too_many_wrong
from api.known_keys import TooManyWrong
from api.pages.forms import Posted
from api.pages.places import checked_return
from api.pages.render import go, page
from api.pages.sessions import clear_session, is_same_origin, session_of, set_session
from api.state import Api, ApiDep

router = APIRouter(include_in_schema=False)

Next = Annotated[str, Query(max_length=2000)]
Once = Annotated[str, Query(max_length=200)]


@router.get("/login")
async def show_login(request: Request, api: ApiDep, next: Next = "", once: Once = "") -> Response:  # noqa: A002
    """The form for a key; or, with the secret of a link, the session that it gives."""
    if not once or request.scope.get("head"):
        return page(request, "login", next=checked_return(next), problem="")
    try:
        name = api.links.take(once, _address(request))
    except TooManyWrong as error:
        raise too_many_wrong(error) from None
    if name is None:
        text = "This link was used before, or is too old. Log in with a key instead."
        return page(request, "login", 403, next="", problem=text)
    # A redirect would lose the cookie where the link was opened from another site, such as a mail.
    return await _start(request, api, name, page(request, "welcome", next=""))


@router.post("/login")
async def log_in(request: Request, api: ApiDep) -> Response:
    """Begin a session of the key in a form."""
    if not is_same_origin(request.headers):
        raise HTTPException(403, "this form was not sent by a page of this server")
    form: dict[str, str] = request.scope["state"]["form"]
    after = checked_return(form.get("next", "")[:2000])
    key = form.get("key", "").strip()
    try:
        found = await api.known_keys.find(api.keys, key, _address(request), "/login")
        caller = caller_of(found)
    except TooManyWrong as error:
        raise too_many_wrong(error) from None
    except HTTPException as error:
        text = f"{error.detail[:1].upper()}{error.detail[1:]}."
        return page(request, "login", 403, next=after, problem=text)
    return await _start(request, api, caller.name, go(request, after))


@router.post("/logout")
async def log_out(request: Request, api: ApiDep, caller: Reader, form: Posted) -> Response:
    """End the session."""
    if session := session_of(request.headers):
        await run_in_threadpool(api.sessions.end, session)
        api.known_sessions.forget(session)
    answer = go(request, "login")
    clear_session(answer, request.headers)
    return answer


async def _start(request: Request, api: Api, key_name: str, answer: Response) -> Response:
    if old := session_of(request.headers):
        await run_in_threadpool(api.sessions.end, old)
        api.known_sessions.forget(old)
    token = await run_in_threadpool(api.sessions.start, key_name)
    set_session(answer, request.headers, token)
    return answer


def _address(request: Request) -> str:
    return request.client.host if request.client else "?"

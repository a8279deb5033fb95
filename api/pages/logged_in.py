"""Sessions: in which browsers one is logged in, and ending the others."""

from __future__ import annotations

import logging

from fastapi import APIRouter, Request, Response

from api.auth import Reader
from api.pages.forms import Posted, ask_first
from api.pages.render import go, page
from api.pages.sessions import session_of
from api.state import ApiDep

audit = logging.getLogger("tuner.api.audit")  # what cannot be taken back, and who did it

router = APIRouter(prefix="/sessions", include_in_schema=False)


@router.get("")
def show_sessions(request: Request, caller: Reader, api: ApiDep) -> Response:
    """The sessions of the key that the browser has logged in with."""
    token = session_of(request.headers)
    return page(request, "sessions", sessions=api.sessions.of_same_key(token) if token else [])


@router.post("/end-others")
def end_others(request: Request, form: Posted, caller: Reader, api: ApiDep) -> Response:
    """End all sessions of the key but this one. Event streams and other servers notice soon."""
    if asking := ask_first(request, form, "sessions"):
        return asking
    if token := session_of(request.headers):
        count = api.sessions.end_others(token)
        audit.info("ended %d other sessions", count, extra={"client": caller.name})
    return go(request, "sessions")

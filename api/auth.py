"""Check the sender of a request and the sender's rights, before the body is read."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors import problem_response, store_problem
from api.keys import TooManyWrong
from api.limits import Limiter
from api.pages.browser import is_page, is_same_origin, needs_no_key, session_of, wants_page
from api.state import Api
from tuner.errors import UnusableStore
from tuner.jobs.web import is_loopback
from tuner.store.api_key import LOCAL, ApiKey, KeyState, key_hash
from tuner.store.api_key import Scope as KeyScope
from tuner.store.database import utc_now

log = logging.getLogger("tuner.api.auth")

_SCHEME = HTTPBearer(auto_error=False, description="A key of `tuner admin keys create`.")
# Headers by which proxies and content delivery networks say for whom they ask.
_PROXIES = re.compile(
    r"forwarded|via|true-client-ip|fastly-client-ip|cdn-loop"
    r"|(x-(forwarded|envoy|original|azure|amzn|appengine)|cf|x-cluster|x-client|x-real)-.*"
)


@dataclass(frozen=True)
class Caller:
    """The sender of a request: the key's name and scope, and whether their jobs may be urgent.

    `secret` is the hash of the key or the session that they sent; empty if none was needed.
    """

    name: str
    scope: KeyScope
    urgent: bool = False
    secret: str = ""


class Authenticate:
    """ASGI middleware: refuses requests without a valid key, or above the caller's rate."""

    def __init__(self, app: ASGIApp, limiter: Limiter) -> None:
        self._app = app
        self._limiter = limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or needs_no_key(scope["path"]):
            await self._app(scope, receive, send)
            return
        request_id = scope["state"]["request_id"]
        try:
            caller = await self._admit(scope, scope["app"].state.api)
        except UnusableStore as error:
            await store_problem(request_id, error)(scope, receive, send)
            return
        except HTTPException as error:
            if error.status_code == 401 and _is_form(scope):
                scope["state"]["refused"] = error  # once its fields are read: see `caller_in`
                await self._app(scope, receive, send)
                return
            response = problem_response(
                request_id, error.status_code, error.detail, headers=error.headers
            )
            await response(scope, receive, send)
            return
        scope["state"].update(caller=caller, limiter=self._limiter)
        await self._app(scope, receive, send)

    async def _admit(self, scope: Scope, api: Api) -> Caller:
        caller = await self._caller(scope, api)
        check = (api.settings.rate, "rate", caller.name)
        if self._limiter.waits:
            await run_in_threadpool(self._limiter.check, *check)
        else:
            self._limiter.check(*check)
        return caller

    async def _caller(self, scope: Scope, api: Api) -> Caller:
        headers = Headers(scope=scope)
        address = scope["client"][0] if scope["client"] else "?"
        if api.settings.no_auth and is_loopback(address) and _is_direct(headers):
            return Caller(LOCAL, KeyScope.ADMIN, urgent=True)
        try:
            if "authorization" not in headers and (session := session_of(headers)):
                return await _caller_of_session(scope, api, session, address)
            kind, _, token = headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer":
                raise _unauthorized("send a key: Authorization: Bearer KEY")
            key = await api.known_keys.find(api.keys, token.strip(), address, scope["path"])
        except TooManyWrong as error:
            raise too_many_wrong(error) from None
        return replace(caller_of(key), secret=key_hash(token.strip()))


async def _caller_of_session(scope: Scope, api: Api, session: str, address: str) -> Caller:
    """Return the caller of a session, which changes nothing beyond pages.

    A browser sends its cookie with every request of a page, also of a hostile page. So forms bring
    a proof, which only pages check.
    """
    if scope["method"] != "GET" and not is_page(scope["path"]):
        raise _unauthorized("a session is for pages: send a key, Authorization: Bearer KEY")
    key = await api.known_sessions.find(api.sessions, session, address, scope["path"])
    if key is None:
        raise _unauthorized("your session has ended: log in again")
    scope["state"]["session"] = session
    return replace(caller_of(key), secret=key_hash(session))


def too_many_wrong(error: TooManyWrong) -> HTTPException:
    """Return the answer to an address that sent too many wrong keys."""
    later = {"Retry-After": str(error.wait_s)}
    return HTTPException(429, "too many wrong keys came from your address", later)


def caller_of(key: ApiKey | None) -> Caller:
    """Return the caller who has a key. Raises HTTPException 401 if it is unknown, revoked or
    expired.
    """
    if key is None:
        raise _unauthorized("this key is not known, or was revoked")
    if key.state(utc_now()) is not KeyState.VALID:
        raise _unauthorized(f"this key expired on {key.expires_at:%Y-%m-%d}: ask for a new key")
    return Caller(key.name, key.scope, key.urgent)


def caller_in(scope: Scope) -> Caller:
    """Return the sender of a request. Raises HTTPException 401 for a form of a caller who is logged
    out.
    """
    if refused := scope["state"].get("refused"):
        raise refused
    caller: Caller = scope["state"]["caller"]
    return caller


def may_hurry(caller: Caller) -> None:
    """Raise HTTPException 403 for a caller whose jobs may not be urgent."""
    if not caller.urgent:
        text = (
            "an urgent job needs a key of scope urgent, and yours has none: post it without "
            "`urgent`, or ask for a key of `tuner admin keys create NAME --scope submit,urgent`"
        )
        raise HTTPException(403, text)


def needs(least: KeyScope) -> Callable[[Request, object], Awaitable[Caller]]:
    """Return a dependency: the caller. It answers 403 if the scope of their key is too small."""
    name = least.name.lower()  # for the OpenAPI document

    async def check(
        request: Request,
        _: object = Security(_SCHEME, scopes=[name]),  # noqa: B008
    ) -> Caller:
        caller = caller_in(request.scope)
        if caller.scope < least:
            mine = caller.scope.name.lower()
            raise HTTPException(403, f"this needs a key of scope {name}, and yours is of {mine}")
        return caller

    return check


Reader = Annotated[Caller, Depends(needs(KeyScope.READ))]
Submitter = Annotated[Caller, Depends(needs(KeyScope.SUBMIT))]
Admin = Annotated[Caller, Depends(needs(KeyScope.ADMIN))]


def _is_direct(headers: Headers) -> bool:
    # A proxy on this machine connects from loopback even if its client is another machine.
    if any(_PROXIES.fullmatch(name) for name in headers):
        return False
    # A web page from elsewhere must not make a browser on this machine send requests.
    origin = headers.get("origin", "")
    if origin and not _names_loopback(origin.rpartition("//")[2]):
        return False
    # DNS rebinding: a web page's name may resolve to this machine; browsers then send that name.
    return _names_loopback(headers.get("host", ""))


def _names_loopback(host: str) -> bool:
    name, _, port = host.rpartition(":")
    return is_loopback(name if port.isdigit() else host)


def _is_form(scope: Scope) -> bool:
    """Return whether the request is a form that a browser sends from a page of this server."""
    return (
        scope["method"] == "POST"
        and is_page(scope["path"])
        and wants_page(scope)
        and is_same_origin(Headers(scope=scope))
    )


def _unauthorized(text: str) -> HTTPException:
    return HTTPException(401, text, {"WWW-Authenticate": "Bearer"})

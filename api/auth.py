"""Who sends a request and what they may do, checked before the body is read."""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from limits import RateLimitItemPerMinute
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from api.docs import is_page
from api.errors import RETRY_S, problem_response
from api.rates import Limiter
from api.state import Api
from tuner.errors import UnusableStore
from tuner.store.keys import Scope as KeyScope

log = logging.getLogger("tuner.api.auth")

OPEN_PATHS = ("/healthz", "/readyz", "/openapi.json")
WRONG_KEYS = RateLimitItemPerMinute(30)  # for each address: keys cannot be guessed, but logs fill
_SCHEME = HTTPBearer(auto_error=False, description="A key of `tuner keys add`.")
# Headers by which proxies and content delivery networks say for whom they ask.
_PROXIES = re.compile(
    r"forwarded|via|true-client-ip|fastly-client-ip|cdn-loop"
    r"|(x-(forwarded|envoy|original|azure|amzn|appengine)|cf|x-cluster|x-client|x-real)-.*"
)
LOCAL = "local"  # a request from this machine without a key, as from its command line


@dataclass(frozen=True)
class Caller:
    """Who sent a request: the key's name and scope."""

    name: str
    scope: KeyScope


class Authenticate:
    """ASGI middleware: refuses requests without a valid key, or above the caller's rate."""

    def __init__(self, app: ASGIApp, limiter: Limiter) -> None:
        self._app = app
        self._limiter = limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or is_page(scope["path"]):
            await self._app(scope, receive, send)
            return
        try:
            caller = await run_in_threadpool(self._admit, scope)
        except HTTPException as error:
            response = problem_response(
                scope["state"]["request_id"], error.status_code, error.detail, headers=error.headers
            )
            await response(scope, receive, send)
            return
        scope["state"].update(caller=caller, limiter=self._limiter)
        await self._app(scope, receive, send)

    def _admit(self, scope: Scope) -> Caller:
        api: Api = scope["app"].state.api
        caller = self._caller(scope, api)
        standings = scope["state"].setdefault("rates", [])
        self._limiter.check(api.settings.rate, "rate", caller.name, standings)
        return caller

    def _caller(self, scope: Scope, api: Api) -> Caller:
        headers = Headers(scope=scope)
        kind, _, token = headers.get("authorization", "").partition(" ")
        address = scope["client"][0] if scope["client"] else "?"
        try:
            if kind.lower() == "bearer":
                if key := api.keys.find(token.strip()):
                    return Caller(key.name, key.scope)
                log.warning("a wrong key", extra={"address": address, "path": scope["path"]})
                self._limiter.check((WRONG_KEYS,), "wrong", address)
                raise _unauthorized("this key is not known, or was revoked")
            if is_loopback(address) and _is_direct(headers) and not api.keys.any_ever():
                return Caller(LOCAL, KeyScope.ADMIN)
        except UnusableStore as error:
            log.error("%s", error)
            text, later = "the store does not answer: try again", {"Retry-After": str(RETRY_S)}
            raise HTTPException(503, text, later) from None
        raise _unauthorized("send a key: Authorization: Bearer KEY")


def needs(least: KeyScope) -> Callable[[Request, object], Awaitable[Caller]]:
    """A dependency: the caller. It answers 403 where the scope of their key is too small."""
    name = least.name.lower()  # for the OpenAPI document

    async def check(
        request: Request,
        _: object = Security(_SCHEME, scopes=[name]),  # noqa: B008
    ) -> Caller:
        caller: Caller = request.scope["state"]["caller"]
        if caller.scope < least:
            mine = caller.scope.name.lower()
            raise HTTPException(403, f"this needs a key of scope {name}, and yours is of {mine}")
        return caller

    return check


Reader = Annotated[Caller, Depends(needs(KeyScope.READ))]
Submitter = Annotated[Caller, Depends(needs(KeyScope.SUBMIT))]
Admin = Annotated[Caller, Depends(needs(KeyScope.ADMIN))]


def is_loopback(address: str) -> bool:
    """Whether an address is this machine's own."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_direct(headers: Headers) -> bool:
    # A proxy on this machine connects from loopback even if its client is another machine.
    if any(_PROXIES.fullmatch(name) for name in headers):
        return False
    # DNS rebinding: a web page's name may resolve to this machine; browsers then send that name.
    host = headers.get("host", "")
    return is_loopback(host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host)


def _unauthorized(text: str) -> HTTPException:
    return HTTPException(401, text, {"WWW-Authenticate": "Bearer"})

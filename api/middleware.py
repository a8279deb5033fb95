"""Middleware around every request: its id, log line and metrics, and checks of its body."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections import Counter
from typing import NoReturn

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.auth import Caller
from api.errors import problem_response, store_problem
from api.pages.browser import OPEN_PATHS, is_page, is_static, is_tls
from api.settings import DIGITS, JSON_DEPTH
from workers.telemetry import current_request

log = logging.getLogger("tuner.api.access")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ONLY_TLS = "max-age=31536000"  # for a year, a browser asks this host by TLS alone
LEAST_BYTES = 2000  # of a page that is compressed
LEVEL = 4  # a page of 300 KB takes 3 ms
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Observe:
    """ASGI middleware: names, logs, times and counts requests; unexpected errors become 500s."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        token = current_request.set(request_id)
        started, status = time.perf_counter(), 0

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                headers["X-Content-Type-Options"] = "nosniff"
                headers.setdefault("Cache-Control", "private, no-store")
                if "session" in scope["state"]:
                    headers.add_vary_header("Cookie")
                if is_tls(Headers(scope=scope)):
                    headers["Strict-Transport-Security"] = _ONLY_TLS
                self._count(scope, status, time.perf_counter() - started)
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except Exception:
            log.exception("a request failed")
            if status:
                raise  # the answer has begun: only a broken connection can tell the client
            await problem_response(request_id, 500)(scope, receive, send_named)
        finally:
            self._log(scope, status, time.perf_counter() - started)
            current_request.reset(token)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        metrics, route = scope["app"].state.api.metrics, _route(scope)
        method = _method(scope) if _method(scope) in _METHODS else "other"
        metrics.requests.labels(method, route, status).inc()
        metrics.seconds.labels(method, route).observe(seconds)

    def _log(self, scope: Scope, status: int, seconds: float) -> None:
        caller, job_id = scope["state"].get("caller"), scope["state"].get("job_id")
        extra = {
            "method": _method(scope),
            "path": scope["path"],
            "route": _route(scope),
            "status": status,
            "ms": round(seconds * 1000, 1),
            "client": caller.name if isinstance(caller, Caller) else None,
            "job_id": job_id or scope.get("path_params", {}).get("job_id"),
        }
        said = {name: value for name, value in extra.items() if value is not None}
        log.info("%s %s %d", _method(scope), scope["path"], status, extra=said)


class AnswerHead:
    """ASGI middleware: answers a HEAD as its GET, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            if message["type"] != "http.response.body":
                await send(message)
                return
            await send({"type": "http.response.body", "body": b""})
            if message.get("more_body"):
                stream.cancel()  # an event stream would not end

        with anyio.CancelScope() as stream:
            await self._app({**scope, "method": "GET", "head": True}, receive, send_head)


class RefuseWithoutStore:
    """ASGI middleware: refuses requests that need the store while no request may use it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and not _works_without_store(scope["path"]):
            refusal = scope["app"].state.api.readiness.refusal
            if refusal is not None:
                app = store_problem(scope["state"]["request_id"], refusal)
        await app(scope, receive, send)


class Refused(Exception):
    """A body that is not passed on, and the status that its request is answered with."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def check_json(body: bytes) -> object:
    """Return the value of a body.

    Raises Refused if it is not plain JSON, or a database cannot store it.
    """
    try:
        value = json.loads(
            body.decode(),
            object_pairs_hook=_each_key_once,
            parse_constant=_no_number,
            parse_int=_bounded,
            parse_float=_finite,
        )
    except RecursionError:
        raise Refused(400, f"the JSON is nested more than {JSON_DEPTH} deep") from None
    except ValueError as error:
        raise Refused(400, f"the body is not JSON: {error}") from None
    _check_values(value)
    return value


def _check_values(value: object) -> None:
    level, depth = [value], 0
    while level:
        if depth > JSON_DEPTH:
            raise Refused(400, f"the JSON is nested more than {JSON_DEPTH} deep")
        below: list[object] = []
        for one in level:
            if isinstance(one, str):
                check_text(one)
            elif isinstance(one, list):
                below.extend(one)
            elif isinstance(one, dict):
                below.extend(one.keys())
                below.extend(one.values())
        level, depth = below, depth + 1


def check_text(text: str) -> None:
    """Raise Refused for a text that a database cannot store."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refused(400, "a string holds half a character") from None
    if "\0" in text:  # valid JSON, and valid in the schema, but PostgreSQL cannot store it
        raise Refused(422, "a string holds a NUL")


def _each_key_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise Refused(400, f"the key {twice[:100]!r} stands twice in one object")
    return found


def _bounded(text: str) -> int:
    if len(text) > DIGITS:
        raise ValueError("a number has too many digits")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if abs(number) == float("inf"):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def _works_without_store(path: str) -> bool:
    return path in OPEN_PATHS or is_static(path)


def _method(scope: Scope) -> str:
    return "HEAD" if scope.get("head") else str(scope["method"])


def _route(scope: Scope) -> str:
    return getattr(scope.get("route"), "path", "unmatched")


class CompressPages:
    """ASGI middleware: compresses pages, which repeat themselves, and no other answer.

    A page holds a secret, the proof of its forms. Pages from elsewhere cannot ask for it again and
    again with guesses of it, because the cookie is not sent with their requests.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._packed = GZipMiddleware(app, minimum_size=LEAST_BYTES, compresslevel=LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        packed = scope["type"] == "http" and is_page(scope["path"])
        await (self._packed if packed else self._app)(scope, receive, send)

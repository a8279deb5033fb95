"""Read the bodies of requests: in time, not too large, and parsed once.

Bodies are plain JSON; pages take forms.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import anyio
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import problem_response
from api.limits import WRITES, Turns
from api.middleware import Refused, check_json, check_text
from api.pages.browser import is_page
from api.settings import (
    BRING_VALUES,
    FORM_FIELDS,
    LARGE_BYTES,
    PIECE_BYTES,
    PIECES,
    QUERY_BYTES,
    QUERY_FIELDS,
    SMALL_BYTES,
    VALUES,
    ApiSettings,
)

_FORM = "application/x-www-form-urlencoded"
_JSON = "application/json"
_KINDS = {_FORM: "a form", _JSON: "JSON"}

T = TypeVar("T")


class CheckBody:
    """ASGI middleware: reads bodies within the settings' limits, and lets only plain JSON through.

    It also refuses query strings that are too large.

    The body's value is left in the scope's state, for `JsonRoute`. A page finds the fields of a
    form there.
    """

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._settings = settings
        self._turns, self._large = Turns(WRITES), Turns(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            _check_query(scope["query_string"])
        except Refused as refusal:
            await _refuse(refusal, scope, receive, send)
            return
        if scope["method"] in ("GET", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        if end_turn := scope["state"].get("end_turn"):
            end_turn()  # while a slow body arrives, others are admitted
        try:
            body = await self._read_in_time(scope, receive)
        except (Refused, HTTPException) as refusal:
            await _refuse(refusal, scope, receive, send)
            return
        turns = self._large if len(body) > LARGE_BYTES else self._turns
        async with turns.take(scope, receive, send) as sender:
            if sender:
                await self._pass_on(body, scope, receive, sender)

    async def _pass_on(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if is_page(scope["path"]):
                scope["state"]["form"] = await _parse(_parse_form, body)
            else:
                scope["state"]["json"] = await _parse(check_json, body) if body else None
        except Refused as refusal:
            await _refuse(refusal, scope, receive, send)
            return
        await self._app(scope, _again(body, receive), send)

    async def _read_in_time(self, scope: Scope, receive: Receive) -> bytes:
        with anyio.move_on_after(self._settings.body_s):
            return await self._read(scope, receive)
        raise Refused(408, f"the body did not arrive within {self._settings.body_s} s")

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        declared = Headers(scope=scope).get("content-length", "0")
        if not declared.isdigit():
            raise Refused(400, "Content-Length is a number of bytes")
        body, more = _Body(scope, self._settings, int(declared[:20])), True
        while more:
            await body.check()
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused(400, "the body was cut off")
            body.add(message.get("body", b""))
            more = message.get("more_body", False)
        await body.check()
        return b"".join(body.chunks)


class _Body:
    """The part of a body that has arrived, and its sender's declarations."""

    def __init__(self, scope: Scope, settings: ApiSettings, declared: int) -> None:
        self.chunks: list[bytes] = []
        self._size, self._values, self._declared = 0, 0, declared
        self._scope, self._settings = scope, settings
        self._counted = False
        self._kind = _FORM if is_page(scope["path"]) else _JSON
        self._sent = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()

    def add(self, chunk: bytes) -> None:
        self._size += len(chunk)
        self._values += len(chunk) - len(chunk.translate(None, BRING_VALUES))
        self.chunks.append(chunk)

    async def check(self) -> None:
        """Raise Refused, or HTTPException 429, for a body that need not be read to its end."""
        if max(self._size, self._declared) > self._settings.max_body_bytes:
            raise Refused(413, f"a body has at most {self._settings.max_body_bytes} bytes")
        if self._values > VALUES:
            raise Refused(413, f"a body has at most {VALUES} commas, colons and brackets")
        if self._size < PIECE_BYTES * (len(self.chunks) - PIECES):
            raise Refused(400, f"send at least {PIECE_BYTES} bytes of a body at a time")
        if self._size and self._sent != self._kind:
            raise Refused(415, f"send {_KINDS[self._kind]}, as Content-Type: {self._kind}")
        if max(self._size, self._declared) > LARGE_BYTES and not self._counted:
            self._counted = True
            state = self._scope["state"]
            rates = self._settings.large_rate
            if "caller" not in state:
                raise Refused(413, f"without a key, a body has at most {LARGE_BYTES} bytes")
            await run_in_threadpool(state["limiter"].check, rates, "large", state["caller"].name)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body that was read, and then all later messages."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again


def _parse_form(body: bytes) -> dict[str, str]:
    """Return the fields of a form by name; if several share a name, their values with commas
    between.

    A browser ends the lines of a text area with CR and LF. They end with LF here.
    """
    fields: dict[str, str] = {}
    if body.count(b"&") >= FORM_FIELDS:
        raise Refused(400, f"a form has at most {FORM_FIELDS} fields")
    try:
        pairs = parse_qsl(body.decode("ascii"), errors="strict", max_num_fields=FORM_FIELDS)
    except ValueError:
        raise Refused(400, "the body is not a form") from None
    for name, sent in pairs:
        value = sent.replace("\r\n", "\n").replace("\r", "\n")
        check_text(value)
        fields[name] = f"{fields[name]},{value}" if name in fields else value
    return fields


async def _parse(parser: Callable[[bytes], T], body: bytes) -> T:
    return parser(body) if len(body) <= SMALL_BYTES else await run_in_threadpool(parser, body)


def _check_query(query: bytes) -> None:
    """Raise Refused for a query string that costs more than any honest query string."""
    if len(query) > QUERY_BYTES or query.count(b"&") >= QUERY_FIELDS:
        text = f"a query has at most {QUERY_BYTES} bytes and {QUERY_FIELDS} parameters"
        raise Refused(422, text)


async def _refuse(
    refusal: Refused | HTTPException, scope: Scope, receive: Receive, send: Send
) -> None:
    if isinstance(refusal, HTTPException):
        status, text, headers = refusal.status_code, refusal.detail, refusal.headers
    else:
        status, text, headers = refusal.status, str(refusal), None
    response = problem_response(scope["state"]["request_id"], status, text, headers=headers)
    await response(scope, receive, send)


class _ParsedRequest(Request):
    async def json(self) -> Any:  # noqa: ANN401 (Starlette's signature)
        return self.scope["state"]["json"]


class JsonRoute(APIRoute):
    """A route that takes the body's value from `CheckBody`. FastAPI would parse it again."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, for a request whose body is parsed."""
        handle = super().get_route_handler()

        async def handle_parsed(request: Request) -> Response:
            return await handle(_ParsedRequest(request.scope, request.receive))

        return handle_parsed

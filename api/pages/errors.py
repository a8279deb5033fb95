"""Errors as pages: for browsers, problem details become a page, and a missing key the log in."""

from __future__ import annotations

import json
from urllib.parse import urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import MEDIA_TYPE
from api.pages.login import log_in_first
from api.pages.places import checked_return, here, is_page, wants_page
from api.pages.render import go, page

# What a page of an error is called; HTTP's own words are for programmers.
_TITLES = {
    400: "That could not be read",
    401: "Log in first",
    403: "That is not allowed",
    404: "There is nothing here",
    405: "That does nothing here",
    409: "That is not possible now",
    413: "That is too much at once",
    415: "That could not be read",
    422: "Something is not right",
    429: "Too much at once",
    500: "The server failed",
    503: "The service is not available",
    507: "The disk is full",
}
_OWN = ("content-type", "content-length", "content-encoding")  # of the answer that is replaced


class ShowErrors:
    """ASGI middleware: turns problem details into pages where a browser asked for one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not wants_page(scope):
            await self._app(scope, receive, send)
            return
        started: Message | None = None
        body = b""

        async def send_page(message: Message) -> None:
            nonlocal started, body
            if message["type"] == "http.response.start":
                if Headers(raw=message["headers"]).get("content-type") == MEDIA_TYPE:
                    started = message
                    return
            elif started is not None:
                body += message.get("body", b"")
                if not message.get("more_body"):
                    answer = _answer(Request(scope), started["status"], json.loads(body))
                    _keep_headers(started, answer)
                    await answer(scope, receive, send)
                return
            await send(message)

        await self._app(scope, receive, send_page)


def _answer(request: Request, status: int, problem: dict[str, str]) -> Response:
    if status == 401 and is_page(request.scope["path"]):
        if request.method == "GET":
            return go(request, "login?" + urlencode({"next": here(request)}))
        if (form := request.scope["state"].get("form")) is not None:
            return log_in_first(request, form)
    kept, again = request.scope["state"].get("too_old"), checked_return(here(request))
    if kept is not None and again:
        return page(request, "again", status, again=again, kept=kept, too_old=True)
    title = _TITLES.get(status, problem["title"])
    return page(
        request, "error", status, get=request.method == "GET", problem={**problem, "title": title}
    )


def _keep_headers(started: Message, answer: Response) -> None:
    headers = MutableHeaders(raw=answer.raw_headers)
    for name, value in Headers(raw=started["headers"]).items():
        if name not in _OWN:
            headers.setdefault(name, value)

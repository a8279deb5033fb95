"""Pages travel compressed: a matrix of thousands of cells is mostly repetition."""

from __future__ import annotations

from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from api.pages.places import is_page

LEAST_BYTES = 2000
LEVEL = 4  # a page of 300 KB takes 3 ms


class CompressPages:
    """ASGI middleware: compresses pages, and no other answer.

    A page holds a secret, the proof of its forms. Pages from elsewhere cannot ask for it again and
    again with guesses of it, because the cookie is not sent with their requests.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._packed = GZipMiddleware(app, minimum_size=LEAST_BYTES, compresslevel=LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        packed = scope["type"] == "http" and is_page(scope["path"])
        await (self._packed if packed else self._app)(scope, receive, send)

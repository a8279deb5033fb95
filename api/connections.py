"""How uvicorn runs the API, and what a client's connection may cost before a request has come."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.errors import MEDIA_TYPE
from api.settings import ApiSettings

log = logging.getLogger("tuner.api")

HEAD_S = 20.0  # a request's head must have arrived so long after its connection began
MOST_USELESS_BYTES = 1 << 16  # that bring no body: a head, or what only looks like the rest of one
LINGER_S = 1.0  # for a client that is refused to read why; until then, what it sends is ignored
MOST_IGNORED_BYTES = 1 << 20
_OTHER_FILES = 200  # of this process: the store, Redis, modules, workers


def uvicorn_options(settings: ApiSettings) -> dict[str, Any]:
    """What uvicorn is run with, beside its address and its logs."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections = max(1, min(settings.connections, most - _OTHER_FILES))
    if connections < settings.connections:
        log.warning(
            "at most %d connections are taken, as the system allows %d open files",
            connections,
            most,
        )
    return {
        "http": ClientConnection,
        "loop": "uvloop",
        "ws": "none",
        "limit_concurrency": connections,
    }


class ClientConnection(HttpToolsProtocol):
    """uvicorn's connection, which ends when its client sends no request, or nothing of use.

    `limit_concurrency` counts connections here, and the ones above it are refused at once.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 (uvicorn's own)
        super().__init__(*arguments, **named)
        # uvicorn would keep the connections above it until they send a request.
        self._most, self.limit_concurrency = self.limit_concurrency, None
        self._refused = False
        self._useless = 0
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._most is not None and len(self.connections) > self._most:
            self._refuse(503, f"{self._most} connections are open, and no more may be: try again")
        else:
            self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._useless += len(data)
        if self._refused:
            if self._useless > MOST_IGNORED_BYTES:
                self.transport.abort()
            return
        super().data_received(data)
        if self._useless > MOST_USELESS_BYTES and not self.transport.is_closing():
            self._refuse(431, f"a request's head has at most {MOST_USELESS_BYTES} bytes")

    def on_headers_complete(self) -> None:
        self._useless = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._useless = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._useless = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_request()

    def shutdown(self) -> None:
        """When the server stops: end an event stream, whose client then connects again."""
        super().shutdown()
        cycle = self.cycle
        if cycle and cycle.chunked_encoding and not cycle.response_complete:
            self.transport.close()

    def _wait_for_request(self) -> None:
        self._stop_waiting()
        self._patience = self.loop.call_later(HEAD_S, self._lose_patience)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()

    def _lose_patience(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _refuse(self, status: int, detail: str) -> None:
        """Answer and close, but not before the client could read the answer."""
        self._refused = True
        problem = {"type": "about:blank", "status": status, "detail": detail}
        body = json.dumps(problem).encode()
        head = (
            f"HTTP/1.1 {status} Refused\r\nContent-Type: {MEDIA_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._stop_waiting()
        self._patience = self.loop.call_later(LINGER_S, self.transport.close)

"""How uvicorn runs the API, and what a client's connection may cost before a request has come."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
from collections import Counter
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.auth import HEALTH_PATHS
from api.bounds import HEAD_BYTES, HEADERS, PIPELINED
from api.errors import MEDIA_TYPE
from api.settings import ApiSettings

log = logging.getLogger("tuner.api")

HEAD_S = 20.0  # a request's head must have arrived so long after its connection began
# Above the bounds so many connections are taken, of one address so many, and only for so long, for
# requests for the health: nobody should take a full server for a dead one.
HEALTH, HEALTH_OF_ONE, HEALTH_S = 20, 2, 2.0
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
        "http": partial(
            ClientConnection,
            Places(connections, settings.connections_per_address),
            Places(HEALTH, HEALTH_OF_ONE),
        ),
        "loop": "uvloop",
        "ws": "none",
    }


class _EndsHereError(Exception):
    """Stops the parser: nothing that follows in what was received is looked at."""


class Places:
    """How many connections there may be, and how many of one address."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self.most = most
        self._most_of_one = most_of_one
        self._taken: Counter[str] = Counter()

    def refusal(self, address: str) -> str:
        """Why an address gets no further place; empty if it gets one."""
        if self._taken[address] >= self._most_of_one:
            taken = f"{self._most_of_one} connections of your address"
        elif self._taken.total() >= self.most:
            taken = f"{self.most} connections"
        else:
            return ""
        return f"{taken} are open, and no more may be: try again"

    def take(self, address: str) -> None:
        self._taken[address] += 1

    def give_back(self, address: str) -> None:
        self._taken[address] -= 1
        if not self._taken[address]:
            del self._taken[address]


class ClientConnection(HttpToolsProtocol):
    """uvicorn's connection, which ends when its client sends no request, or nothing of use."""

    def __init__(
        self,
        clients: Places,
        health: Places,
        *arguments: Any,  # noqa: ANN401 (uvicorn's own)
        **named: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*arguments, **named)
        self._clients, self._health = clients, health
        self._place: Places | None = None
        self._full = ""  # why it is taken for requests for the health alone
        self._refused = False
        self._useless = 0
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._full = self._clients.refusal(self._address)
        place = self._health if self._full else self._clients
        if place.refusal(self._address):
            self._refuse(503, self._full)
            return
        place.take(self._address)
        self._place = place
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._place is not None:
            self._place.give_back(self._address)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._useless += len(data)
        if self._refused:
            if self._useless > MOST_IGNORED_BYTES:
                self.transport.abort()
            return
        super().data_received(data)
        if self._useless > HEAD_BYTES and not (self._refused or self.transport.is_closing()):
            self._refuse(431, f"a request's head has at most {HEAD_BYTES} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > HEADERS:
            self._refuse(431, f"a request has at most {HEADERS} headers")
            raise _EndsHereError

    def on_headers_complete(self) -> None:
        self._useless = 0
        if len(self.pipeline) >= PIPELINED:
            self.transport.abort()  # its client reads no answers, or not yet
            raise _EndsHereError
        if self._full and self.url.partition(b"?")[0].decode("latin-1") not in HEALTH_PATHS:
            self._refuse(503, self._full)
            raise _EndsHereError
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request. uvicorn does so for each exception out of the parser."""
        if not (self._refused or self.transport.is_closing()):
            super().send_400_response(msg)

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

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _wait_for_request(self) -> None:
        self._stop_waiting()
        patience = HEALTH_S if self._full else HEAD_S
        self._patience = self.loop.call_later(patience, self._lose_patience)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()

    def _lose_patience(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
            # Until then it may still read an answer, and if it does not, it would stay for ever.
            self._patience = self.loop.call_later(LINGER_S, self.transport.abort)

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

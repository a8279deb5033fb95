"""Run the API with uvicorn, and bound the number and the slowness of clients' connections.

h11 bounds what a request's head may hold, and reads the next request of a connection only when the
one before is answered. Beyond loopback a proxy stands before all of this (docs/operations.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from collections import Counter
from functools import partial
from typing import Any

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from api.auth import HEALTH_PATHS
from api.bounds import HEAD_BYTES
from api.errors import problem_response
from api.settings import ApiSettings

log = logging.getLogger("tuner.api")

HEAD_S = 20.0  # a request's head must have arrived so long after its connection began
# Above the bounds so many connections are taken, of one address so many, and only for so long, for
# requests for the health: nobody should take a full server for a dead one.
HEALTH, HEALTH_OF_ONE, HEALTH_S = 20, 2, 2.0
# The system keeps at most about twice so much of the answers that a client has not read yet. By
# default it keeps up to 4 MiB: a client that reads nothing would have all of that made for it.
UNREAD_BYTES = 1 << 17
LINGER_S = 1.0  # a client that reads nothing keeps a closed connection for so long
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
        "h11_max_incomplete_event_size": HEAD_BYTES,
        "loop": "uvloop",
        "ws": "none",
    }


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


class ClientConnection(H11Protocol):
    """uvicorn's connection, which has a place, and ends if its client sends no request."""

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
        self._patience_s = HEAD_S
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD_BYTES
        )
        place = self._clients
        if refusal := place.refusal(self._address):
            self.app = _health_alone(self.app, refusal)
            self._patience_s, place = HEALTH_S, self._health
        if place.refusal(self._address):
            transport.abort()
            return
        place.take(self._address)
        self._place = place
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._place is not None:
            self._place.give_back(self._address)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no request, unless another answer has begun."""
        with contextlib.suppress(h11.LocalProtocolError):
            super().send_400_response(msg)
        self.transport.close()
        self._abort_soon()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_request()

    def shutdown(self) -> None:
        """When the server stops: end an event stream, whose client then connects again."""
        super().shutdown()
        cycle = self.cycle
        if cycle and not cycle.response_complete and cycle.scope["path"].endswith("/events"):
            self.transport.close()

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _wait_for_request(self) -> None:
        self._stop_waiting()
        self._patience = self.loop.call_later(self._patience_s, self._lose_patience)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()

    def _lose_patience(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
            self._abort_soon()

    def _abort_soon(self) -> None:
        """Until then the client may read an answer. If it reads nothing, it would stay for ever."""
        self._stop_waiting()
        self._patience = self.loop.call_later(LINGER_S, self.transport.abort)


def _health_alone(app: ASGIApp, refusal: str) -> ASGIApp:
    """The application for a connection above the bounds."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in HEALTH_PATHS:
            app_of_one = problem_response("", 503, refusal, headers={"Connection": "close"})
            await app_of_one(scope, receive, send)
            return
        await app(scope, receive, send)

    return answer

"""How many requests are worked on at once: the others wait, the oldest first, but not for long.

Requests that hang in the store so keep their turns, and neither threads nor connections run out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.auth import HEALTH_PATHS, needs_no_key
from api.errors import RETRY_S, problem_response

WAIT_S = 5.0
# More reading requests at once are not faster, because Python's lock lets one thread run at a time.
# It picks threads at random: with eight at once, some answers took ten times as long as others.
READS = 3  # one computes while the others wait for the database
OPEN = 1  # requests that need no key: however many there are, the others wait for at most this one
EXPORTS = 2  # they take long, and must not make the other reading requests wait
ADMISSIONS = 4  # requests with a body, until it is read
WRITES = 8  # and after that
_EXPORTS = "/v1/exports/"


class Turns:
    """So many at once."""

    def __init__(self, at_once: int) -> None:
        self._free = anyio.Semaphore(at_once)

    @asynccontextmanager
    async def take(self, scope: Scope, receive: Receive, send: Send) -> AsyncIterator[Send | None]:
        """Wait for a turn, which ends when the answer begins: a slow client keeps none.

        Gives the `send` to answer with; None where the request waited in vain and was answered.
        """
        if not await self._is_free():
            later, text = {"Retry-After": str(RETRY_S)}, "the server is busy: try again"
            answer = problem_response(scope["state"]["request_id"], 503, text, headers=later)
            await answer(scope, receive, send)
            yield None
            return
        with ExitStack() as turn:
            turn.callback(self._free.release)
            scope["state"]["end_turn"] = turn.close

            async def send_out_of_turn(message: Message) -> None:
                turn.close()
                await send(message)

            yield send_out_of_turn

    async def _is_free(self) -> bool:
        try:
            self._free.acquire_nowait()
        except anyio.WouldBlock:
            with anyio.move_on_after(WAIT_S) as wait:
                await self._free.acquire()
            return not wait.cancelled_caught
        return True


class TakeTurns:
    """ASGI middleware: requests take turns. Health checks never wait."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._reads, self._exports = Turns(READS), Turns(EXPORTS)
        self._admissions, self._open = Turns(ADMISSIONS), Turns(OPEN)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in HEALTH_PATHS:
            await self._app(scope, receive, send)
            return
        async with self._turns(scope).take(scope, receive, send) as sender:
            if sender:
                await self._app(scope, receive, sender)

    def _turns(self, scope: Scope) -> Turns:
        if scope["method"] != "GET":
            return self._admissions
        if needs_no_key(scope["path"]):
            return self._open
        return self._exports if scope["path"].startswith(_EXPORTS) else self._reads

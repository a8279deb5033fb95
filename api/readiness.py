"""Whether the store can be used: for load balancers, and to refuse requests that it cannot serve.

Its questions have a connection and a thread of their own. So they are answered in time however much
other work waits for the store.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NoReturn

import anyio
from anyio import to_thread

from tuner.errors import StoreReplaced, StoreUnreachable, UnusableStore, WrongSchema
from tuner.store.database import PATIENCE_S, Probe

log = logging.getLogger("tuner.api")

FRESH_S = 1.0  # an answer serves all who ask within so long: asking needs no key
LOOK_S = 3.0  # between looks at the schema


class Readiness:
    """Looks at the store that `probe` asks. For one event loop."""

    def __init__(self, probe: Probe) -> None:
        self.refusal: UnusableStore | None = None  # why no request may use the store
        self._probe = probe
        self._turn = anyio.Lock()
        self._thread = anyio.CapacityLimiter(1)
        self._answer: UnusableStore | None = None
        self._asked_at: float | None = None

    async def check(self) -> None:
        """Raises UnusableStore, after PATIENCE_S at most, where requests cannot be served."""
        with anyio.move_on_after(PATIENCE_S) as patience:
            async with self._turn:
                if self._asked_at is None or time.monotonic() - self._asked_at >= FRESH_S:
                    self._answer = await self._ask(self._check_all)
                    self._asked_at = time.monotonic()
        if patience.cancelled_caught:
            raise StoreUnreachable(f"the store did not answer within {PATIENCE_S} s")
        if self._answer:
            raise self._answer.with_traceback(None)

    async def watch(self) -> NoReturn:
        """Keep `refusal` up to date."""
        while True:
            try:
                await self._look()
            except Exception:
                log.exception("a look at the store's schema failed")
            await anyio.sleep(LOOK_S)

    async def _look(self) -> None:
        found = await self._ask(self._probe.check_schema)
        if isinstance(found, (WrongSchema, StoreReplaced)):
            if self.refusal is None:
                log.error("requests are refused: %s", found)
            self.refusal = found
        elif found is None:  # a store that does not answer says nothing about its schema
            self.refusal = None

    async def _ask(self, question: Callable[[], None]) -> UnusableStore | None:
        def answer() -> UnusableStore | None:
            try:
                question()
            except UnusableStore as error:
                return error
            return None

        return await to_thread.run_sync(answer, abandon_on_cancel=True, limiter=self._thread)

    def _check_all(self) -> None:
        self._probe.check_schema()
        self._probe.check_writable()

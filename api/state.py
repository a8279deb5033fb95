"""What the handlers share: the store's parts, who is woken, and what is counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request
from starlette.exceptions import HTTPException

from api.metrics import Metrics
from api.settings import ApiSettings
from tuner.store import JobStore, NightStore, Store
from tuner.store.keys import KeyStore
from tuner.store.lookups import Lookups
from workers.reconcile import Announces


@dataclass
class Api:
    """One application's parts. Safe to share between threads."""

    settings: ApiSettings
    store: Store
    announcer: Announces
    metrics: Metrics
    streams: int = 0  # event streams open now; the event loop's alone
    _submitting: set[tuple[str, str]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.jobs = JobStore.sharing(self.store)
        self.nights = NightStore.sharing(self.store)
        self.keys = KeyStore.sharing(self.store)
        self.lookups = Lookups.sharing(self.store)

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Counts an event stream while it is open."""
        self.streams += 1
        self.metrics.streams.inc()
        try:
            yield
        finally:
            self.streams -= 1
            self.metrics.streams.dec()

    @contextmanager
    def alone(self, client: str, idempotency_key: str | None) -> Iterator[None]:
        """Refuses a key that another request of this process is at work on."""
        if idempotency_key is None:
            yield
            return
        mine = client, idempotency_key
        with self._lock:
            if mine in self._submitting:
                text = "a request with this idempotency key is being worked on: try again"
                raise HTTPException(409, text, {"Retry-After": "1"})
            self._submitting.add(mine)
        try:
            yield
        finally:
            with self._lock:
                self._submitting.discard(mine)


async def get_api(request: Request) -> Api:  # as it never waits, it needs no thread
    api = request.app.state.api
    assert isinstance(api, Api)
    return api


ApiDep = Annotated[Api, Depends(get_api)]

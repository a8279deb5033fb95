"""The state that handlers share: the store and whether it is usable, the workers, and caches."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Annotated, NoReturn

import anyio
from anyio import to_thread
from fastapi import Depends, Request

from api.bundles import Bundles
from api.exports import Exports
from api.keys import KnownKeys
from api.limits import Question
from api.matrix import Matrix
from api.pages.browser import LoginLinks
from api.settings import ApiSettings
from api.streams import FollowedJob, Streams
from tuner.errors import StoreReplaced, StoreUnreachable, UnusableStore, WrongSchema
from tuner.jobs.workers import Reasons, WorkerStatus
from tuner.store.database import PATIENCE_S, Database, Probe
from tuner.store.jobs import JobStore
from tuner.store.keys import KeyStore, SessionStore
from tuner.store.lookups import Lookups
from tuner.store.nights import NightStore
from tuner.store.results import ResultStore
from tuner.store.workers import Estimates, WorkerStore
from workers.metrics import Metrics
from workers.queue import Announces
from workers.watches import UnreadableWatch, Watch, watch_list_of

log = logging.getLogger("tuner.api")

FRESH_S = 1.0  # an answer serves all who ask within so long: asking needs no key
LOOK_S = 3.0  # between looks at the schema


class Readiness:
    """Looks at the store that `probe` asks. Only a single event loop may use it."""

    def __init__(self, probe: Probe) -> None:
        self.refusal: UnusableStore | None = None  # why no request may use the store
        self._probe = probe
        self._turn = anyio.Lock()
        self._thread = anyio.CapacityLimiter(1)
        self._answer: UnusableStore | None = None
        self._asked_at: float | None = None

    async def check(self) -> None:
        """Raise UnusableStore, after PATIENCE_S at most, if requests cannot be served."""
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


SEEN_FOR_S = 2.0  # a submission need not ask the store for each job


class Fleet:
    """The workers, read from the store every two seconds at most. Threads may share it."""

    def __init__(self, workers: WorkerStore) -> None:
        self._store = workers
        self._question = Question()
        self._seen: Reasons | None = None
        self._seen_at = 0.0

    def workers(self) -> Sequence[WorkerStatus]:
        """Return all known workers. Raises UnusableStore."""
        return self.reasons().workers

    def reasons(self) -> Reasons:
        """Return the object that says of each job why it does not go on. Raises UnusableStore."""
        with self._question.turn():
            now = time.monotonic()
            if self._seen is None or now - self._seen_at >= SEEN_FOR_S:
                self._seen, self._seen_at = self._store.reasons(), now
            since = timedelta(seconds=now - self._seen_at)
            return Reasons(self._seen.workers, self._seen.now + since)


@dataclass
class Api:
    """The state that an application's handlers share. Safe to share between threads."""

    settings: ApiSettings
    store: Database
    announcer: Announces
    metrics: Metrics
    readiness: Readiness

    def __post_init__(self) -> None:
        self.jobs = JobStore(self.store)
        self.nights = NightStore(self.store)
        self.keys = KeyStore(self.store)
        self.known_keys = KnownKeys()
        self.sessions = SessionStore(self.store)
        self.known_sessions = KnownKeys()
        self.links = LoginLinks()
        self.lookups = Lookups(self.store)
        self.estimates = Estimates(self.store)
        self.results = ResultStore(self.store)
        self.workers = WorkerStore(self.store)
        self.fleet = Fleet(self.workers)
        self.matrix = Matrix(self.lookups, self._watches, self.fleet.workers)
        self.streams = Streams(
            self.jobs.event_counts,
            self.jobs.events,
            self._valid_secrets,
            most=self.settings.streams,
            most_per_key=self.settings.streams_per_key,
        )

    @cached_property
    def exports(self) -> Exports:
        return Exports(self.results)

    @cached_property
    def bundles(self) -> Bundles:
        return Bundles(self.results)

    def _valid_secrets(self) -> frozenset[str]:
        return self.keys.hashes() | self.sessions.hashes()

    def _watches(self) -> Sequence[Watch | UnreadableWatch]:
        return watch_list_of(self.settings.service, self.nights).watches

    @contextmanager
    def streaming(self, client: str, secret: str, job_id: str) -> Iterator[FollowedJob]:
        """Take a place for an event stream. Raises HTTPException if there is none left."""
        with self.streams.place(client, secret), self.streams.following(job_id) as job:
            self.metrics.streams.inc()
            try:
                yield job
            finally:
                self.metrics.streams.dec()


async def get_api(request: Request) -> Api:  # async: it never blocks, so it needs no thread
    api = request.app.state.api
    assert isinstance(api, Api)
    return api


ApiDep = Annotated[Api, Depends(get_api)]

"""What the handlers share: the store, the announcer that wakes workers, and the metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from api.bundles import Bundles
from api.exports import Exports
from api.fleet import Fleet
from api.known_keys import KnownKeys
from api.matrix import Matrix
from api.metrics import Metrics
from api.pages.sessions import Links
from api.rates import Quotas
from api.readiness import Readiness
from api.settings import ApiSettings
from api.streams import FollowedJob, Streams
from api.waits import Waits
from tuner.store import JobStore, NightStore, ServedProofStore, Store
from tuner.store.figures import Estimates
from tuner.store.keys import KeyStore
from tuner.store.lookups import Lookups
from tuner.store.results import ResultStore
from tuner.store.sessions import SessionStore
from tuner.store.workers import WorkerStore
from workers.nightly import watch_list_of
from workers.queue import Announces
from workers.watches import Watch


@dataclass
class Api:
    """What one application's handlers share. Safe to share between threads."""

    settings: ApiSettings
    store: Store
    announcer: Announces
    metrics: Metrics
    readiness: Readiness

    def __post_init__(self) -> None:
        self.jobs = JobStore(self.store)
        self.nights = NightStore(self.store)
        self.proofs = ServedProofStore(self.store)
        self.keys = KeyStore(self.store)
        self.known_keys = KnownKeys()
        self.sessions = SessionStore(self.store)
        self.known_sessions = KnownKeys()
        self.links = Links()
        self.lookups = Lookups(self.store)
        self.estimates = Estimates(self.store)
        self.results = ResultStore(self.store)
        self.waits = Waits(self.jobs)
        self.workers = WorkerStore(self.store)
        self.fleet = Fleet(self.workers)
        self.matrix = Matrix(self.lookups, self._watches, self.fleet.workers)
        self.quotas = Quotas(self.jobs, self.settings.queued)
        self.exports = Exports(self.store)
        self.bundles = Bundles(self.store)
        self.streams = Streams(
            self.jobs.event_counts,
            self.jobs.events,
            self._valid_secrets,
            most=self.settings.streams,
            most_per_key=self.settings.streams_per_key,
        )

    def _valid_secrets(self) -> frozenset[str]:
        return self.keys.hashes() | self.sessions.hashes()

    def _watches(self) -> Sequence[Watch]:
        return watch_list_of(self.settings.service, self.nights).watches

    @contextmanager
    def streaming(self, client: str, secret: str, job_id: str) -> Iterator[FollowedJob]:
        """A place for an event stream. Raises HTTPException where there is none left."""
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

"""Clients that follow a job: event streams, and the progress of its run.

A single reader wakes all streams of a process, which hold no thread.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn

import anyio
from anyio import to_thread
from starlette.exceptions import HTTPException

from api.keys import FRESH_S
from tuner.errors import StoreUnreachable, TunerError
from tuner.jobs.job import PLANNED, Job, JobEvent, JobState
from tuner.jobs.workers import Reasons
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.registry import read_part
from tuner.problems.results import Status
from tuner.store.jobs import JobStore
from tuner.store.results import ResultStore

log = logging.getLogger("tuner.api.streams")

POLL_S = 0.5  # between looks for new events, and for jobs that have ended
PAGE = 500  # events read at once
ENDS = {state.value for state in JobState if state.finished}  # kinds of a job's last event
RETRY_S = 5  # a client that was refused a stream should wait for so long
ReadCounts = Callable[[Collection[str]], Mapping[str, int]]
ReadEvents = Callable[[str, int, int], Sequence[JobEvent]]
ReadValid = Callable[[], frozenset[str]]


class Streams:
    """Follows jobs for their streams, in an event loop. A single thread reads the store."""

    def __init__(
        self, counts: ReadCounts, events: ReadEvents, valid: ReadValid, most: int, most_per_key: int
    ) -> None:
        """Take the functions that read the store.

        `counts` reads the number of events of jobs, `events` a job's events after a number, and
        `valid` the hashes of all valid keys and sessions.
        """
        self._counts, self._events, self._valid = counts, events, valid
        self._secrets: Counter[str] = Counter()  # of the open streams
        self._ended: set[str] = set()  # those of the secrets that are valid no more
        self._valid_until = 0.0
        self._most, self._most_per_key = most, most_per_key
        self._by_key: Counter[str] = Counter()
        self._jobs: dict[str, FollowedJob] = {}
        self._anybody = anyio.Event()
        self._thread = anyio.CapacityLimiter(1)

    @property
    def open(self) -> int:
        """Return the number of streams that are open."""
        return sum(self._by_key.values())

    @contextmanager
    def place(self, key: str, secret: str) -> Iterator[None]:
        """Take a place for a stream. Raises HTTPException 429 above the key's number, 503 above
        all.

        `secret` is the hash of the key or session that its client sent, and empty if no key was
        needed.
        """
        later = {"Retry-After": str(RETRY_S)}
        if self._by_key[key] >= self._most_per_key:
            text = f"{self._by_key[key]} event streams of this key are open, and no more may be"
            raise HTTPException(429, text, later)
        if self.open >= self._most:
            raise HTTPException(
                503, f"{self.open} event streams are open, and no more may be", later
            )
        self._by_key[key] += 1
        self._secrets[secret] += 1
        try:
            yield
        finally:
            _one_less(self._by_key, key)
            _one_less(self._secrets, secret)
            if secret not in self._secrets:
                self._ended.discard(secret)

    def has_ended(self, secret: str) -> bool:
        """Say whether the key or the session of an open stream is valid no more."""
        return secret in self._ended

    @contextmanager
    def following(self, job_id: str) -> Iterator[FollowedJob]:
        """Follow a job while the block runs. Streams of the same job share it."""
        job = self._jobs.setdefault(job_id, FollowedJob(job_id, self))
        job.followers += 1
        self._anybody.set()
        try:
            yield job
        finally:
            job.followers -= 1
            if not job.followers:
                del self._jobs[job_id]

    async def watch(self) -> NoReturn:
        """Look for new events of all followed jobs, with a single query, and wake their streams."""
        while True:
            if not self._jobs:
                self._anybody = anyio.Event()
                await self._anybody.wait()
            try:
                await self._look()
                await self._ask_again()
            except Exception as error:
                log.error(
                    "event streams end: %s", error, exc_info=not isinstance(error, TunerError)
                )
                for job in self._jobs.values():
                    job.fail()
            await anyio.sleep(POLL_S)

    async def events(self, job_id: str, after: int) -> Sequence[JobEvent]:
        """Return a page of a job's events. Raises UnusableStore."""
        return await to_thread.run_sync(self._events, job_id, after, PAGE, limiter=self._thread)

    async def _look(self) -> None:
        job_ids = tuple(self._jobs)
        counts = await to_thread.run_sync(self._counts, job_ids, limiter=self._thread)
        for job_id in job_ids:
            if job := self._jobs.get(job_id):
                job.advance(counts[job_id]) if job_id in counts else job.fail()

    async def _ask_again(self) -> None:
        """End the streams whose keys or sessions have ended."""
        if time.monotonic() < self._valid_until:
            return
        self._valid_until = time.monotonic() + FRESH_S
        asked = set(self._secrets) - {""}  # before the answer: later secrets were valid after it
        self._ended |= asked - await to_thread.run_sync(self._valid, limiter=self._thread)
        self._ended &= set(self._secrets)
        if self._ended:
            for job in self._jobs.values():
                job.wake()


def _one_less(counts: Counter[str], what: str) -> None:
    counts[what] -= 1
    if not counts[what]:
        del counts[what]


class FollowedJob:
    """The state that streams of a job share: its number of events, and the page read last."""

    def __init__(self, job_id: str, streams: Streams) -> None:
        self.followers = 0
        self._id, self._streams = job_id, streams
        self._count: int | None = None  # not known yet
        self._failed = False
        self._changed = anyio.Event()
        self._reading = anyio.Lock()
        self._after = 0  # the number before the page
        self._page: Sequence[JobEvent] = ()

    def advance(self, count: int) -> None:
        """Take the job's number of events, and wake the streams if it has changed."""
        if count != self._count:
            self._count = count
            self.wake()

    def fail(self) -> None:
        """End the streams, because the store does not answer or the job was deleted.

        Their clients connect again, and are told then if the job was deleted.
        """
        self._failed = True
        self.wake()

    def wake(self) -> None:
        """Let the streams look again."""
        self._changed.set()
        self._changed = anyio.Event()

    async def after(self, seen: int, secret: str = "") -> Sequence[JobEvent]:
        """Return the events after the event number `seen`, a page at most; wait for the first.

        Return none if the stream's key or session has ended. Raises UnusableStore if the store does
        not answer.
        """
        while True:
            changed = self._changed
            if self._failed:
                raise StoreUnreachable
            if self._streams.has_ended(secret):
                return ()
            known = self._count
            if (known is None or known > seen) and (page := await self._read(seen)):
                return page
            await changed.wait()

    async def _read(self, seen: int) -> Sequence[JobEvent]:
        async with self._reading:
            if not self._page or not self._after <= seen < self._page[-1].seq:
                page = await self._streams.events(self._id, seen)
                if not page:
                    return ()
                self._after, self._page = seen, page
            return [event for event in self._page if event.seq > seen]


_EVENTS = 200  # the newest events say the pace
_UNKNOWN = ("to_try", "left_s", "tried_a_minute", "timed_a_minute")  # before a run begins
_LEAST = timedelta(seconds=2)  # before that, a pace says nothing


def progress_of(job: Job, jobs: JobStore, results: ResultStore, reasons: Reasons) -> dict[str, Any]:
    """Return the fields of `ProgressOut`."""
    if job.run_id is None:
        return {"trials": {}, "best": [], "incumbents": [], **dict.fromkeys(_UNKNOWN)}
    counts, best = results.trial_counts(job.run_id), results.best_trials(job.run_id)
    planned = jobs.latest_events(job.id, 1, PLANNED)
    stalled = reasons.stalled(job)
    pace = None if stalled else pace_of(jobs.latest_events(job.id, _EVENTS))
    tried, timed = pace or (None, None)
    to_try = planned[0].data["to_try"] if planned else None
    left_s = None
    if tried and to_try is not None and not job.state.finished:
        left_s = 60 * max(0, to_try - sum(counts.values())) / tried
    return {
        "trials": {status.value: count for status, count in counts.items()},
        "best": [
            {**point.as_json(), "point": str(point), "best_us": best[point]}
            for point in sorted(best)
        ],
        "incumbents": _incumbents(job.run_id, planned[0].data, results) if planned else [],
        "to_try": to_try,
        "left_s": left_s,
        "tried_a_minute": tried,
        "timed_a_minute": timed,
    }


def pace_of(events: Sequence[JobEvent]) -> tuple[float, float] | None:
    """Return the trials a minute, tried and timed, since the newest attempt began.

    If the events begin later than the attempt, they count from the first event.
    """
    began = max((n for n, one in enumerate(events) if _begins(one)), default=0)
    trials = [one for one in events[began:] if one.kind == "trials"]
    if not trials:
        return None
    passed = trials[-1].at - events[began].at
    if passed < _LEAST:
        return None
    # The first of the events, if it has trials, only says when they were stored.
    counted = [one.data for one in trials if one is not events[began]]
    tried = sum(data["tried"] for data in counted)
    timed = sum(_timed(data.get("statuses", {})) for data in counted)
    minutes = passed.total_seconds() / 60
    return tried / minutes, timed / minutes


def _begins(event: JobEvent) -> bool:
    return event.kind == JobState.RUNNING.value


def _timed(statuses: Mapping[str, int]) -> int:
    return sum(statuses.get(status.value, 0) for status in (Status.OK, Status.PREDICTED))


def _incumbents(
    run_id: int, planned: Mapping[str, Any], results: ResultStore
) -> list[dict[str, Any]]:
    """Return the times so far of the engine's own configurations, for each point to tune."""
    points = [(one, _point(one)) for one in planned["incumbents"]]
    candidates = {
        Candidate(point, Config(config))
        for one, point in points
        for config in one["configs"].values()
    }
    times = results.times_of(run_id, candidates)
    return [
        {
            **{name: value for name, value in one.items() if name != "configs"},
            "times_us": {
                name: times.get(Candidate(point, Config(config)))
                for name, config in one["configs"].items()
            },
        }
        for one, point in points
    ]


def _point(said: Mapping[str, Any]) -> Point:
    part = read_part(said.get("gemm") or said["part"])
    tokens = said.get("new_tokens") or 0, said.get("cached_tokens") or 0
    return Point(said["batch_size"], part, *tokens)

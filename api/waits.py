"""Requests that wait for the end of their job. They hold no thread, and one query asks for all."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
from fastapi import Request
from starlette.concurrency import run_in_threadpool

from tuner.errors import UnusableStore
from tuner.store.jobs import JobStore

log = logging.getLogger("tuner.api.waits")

POLL_S = 0.5  # between looks for jobs that have ended
MOST = 200  # requests that wait at once in this process; more are answered at once
MOST_OF_ONE = 50  # of one client


class Waits:
    """Waits for jobs to end, in one event loop."""

    def __init__(self, jobs: JobStore) -> None:
        self._jobs = jobs
        self._wakes: dict[str, set[anyio.Event]] = {}  # by the id of the job that is waited for
        self._clients: Counter[str] = Counter()
        self._looking: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """How many requests wait."""
        return self._clients.total()

    async def until_ended(self, job_id: str, request: Request, client: str, seconds: float) -> None:
        """Return when the job has ended, after so many seconds, or when the client has gone.

        Returns at once where too many wait already.
        """
        if self.count >= MOST or self._clients[client] >= MOST_OF_ONE:
            return
        with self._waiting(job_id, client) as ended, anyio.move_on_after(seconds):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_until_gone, request, ended)
                await ended.wait()
                tasks.cancel_scope.cancel()

    @contextmanager
    def _waiting(self, job_id: str, client: str) -> Iterator[anyio.Event]:
        wake = anyio.Event()
        self._wakes.setdefault(job_id, set()).add(wake)
        self._clients[client] += 1
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            yield wake
        finally:
            self._clients[client] -= 1
            self._wakes[job_id].discard(wake)
            if not self._wakes[job_id]:
                del self._wakes[job_id]

    async def _look(self) -> None:
        """Wake whose job has ended, for as long as anybody waits."""
        while self._wakes:
            try:
                ended = await run_in_threadpool(self._jobs.ended, tuple(self._wakes))
            except UnusableStore as error:
                log.warning("no look for ended jobs: %s", error)  # the next may succeed
                ended = set()
            for job_id in ended:
                for wake in self._wakes.get(job_id, ()):
                    wake.set()
            await anyio.sleep(POLL_S)


async def _until_gone(request: Request, gone: anyio.Event) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gone.set()

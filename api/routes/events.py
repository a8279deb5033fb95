"""A job's steps as they happen: server-sent events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import anyio
from fastapi import APIRouter, Depends, Header, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from api.auth import Reader
from api.errors import responses
from api.schemas_jobs import EventOut
from api.state import Api, ApiDep
from api.streams import FollowedJob
from api.text import JobId
from tuner.errors import UnusableStore
from tuner.jobs.job import JobEvent, JobState

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

_ENDS = {state.value for state in JobState if state.finished}  # kinds of a job's last event
RECONNECT_MS = 2000  # a client waits for so long after the stream broke

LastEventId = Annotated[
    int,
    Header(
        ge=0,
        lt=1 << 31,
        description="The last event received: the stream goes on after it.",
    ),
]


After = Annotated[
    int,
    Query(
        ge=0,
        lt=1 << 31,
        description="As Last-Event-ID, for a client that cannot send it. The header counts more.",
    ),
]


@dataclass(frozen=True)
class StreamStart:
    """A stream begins after the job's event with the number `seen`."""

    job: FollowedJob
    seen: int
    secret: str  # of the caller


async def _stream_start(
    job_id: JobId, caller: Reader, api: ApiDep, last_event_id: LastEventId = 0, after: After = 0
) -> AsyncIterator[StreamStart]:
    """The stream's start, and its place. Once it has begun, its status cannot be changed."""
    seen = await run_in_threadpool(_first_seen, api, job_id, last_event_id or after)
    with api.streaming(caller.name, caller.secret, job_id) as job:
        yield StreamStart(job, seen, caller.secret)


def _first_seen(api: Api, job_id: str, last_event_id: int) -> int:
    job = api.jobs.get(job_id)
    # A store restored from a backup may lack that event: then the stream begins at the first one.
    known = api.jobs.events(job_id, last_event_id - 1, 1) if last_event_id else ()
    seen = last_event_id if known else 0
    if job.state.finished and not api.jobs.events(job_id, seen, 1):
        raise HTTPException(204)  # a browser does not reconnect after a 204
    return seen


@router.get(
    "/{job_id}/events",
    response_class=EventSourceResponse,
    responses={
        **responses(404),
        200: {
            "description": "A stream. Each event has its number as `id`, its kind as `event`, and "
            "an `EventOut` as `data`."
        },
        204: {"description": "The job has ended and there are no more events."},
    },
)
async def follow_job(
    start: Annotated[StreamStart, Depends(_stream_start)], api: ApiDep
) -> AsyncIterator[EventOut]:
    """Follow a job to its end, from its first step or from the one after Last-Event-ID."""
    ends_at = time.monotonic() + api.settings.stream_s
    seen, finished = start.seen, False
    yield ServerSentEvent(comment="steps of a job", retry=RECONNECT_MS)  # type: ignore[misc]
    while not finished:
        events: Sequence[JobEvent] = ()
        with anyio.move_on_after(ends_at - time.monotonic()):
            try:
                events = await start.job.after(seen, start.secret)
            except UnusableStore:
                return  # the client reconnects with the last id that it has
        if not events:
            return
        for event in events:
            seen = event.seq
            data = event.as_json()
            yield ServerSentEvent(data=data, event=event.kind, id=str(seen))  # type: ignore[misc]
            finished = event.kind in _ENDS

"""Reading requests take turns in order of their coming; what must not wait does not."""

import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from api.limits import READS, TakeTurns

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Handler:
    """An application whose requests wait until the test lets them go on."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_answer: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)
        self.may_end: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)
        self.fails: set[str] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        self.begun.append(path)
        await self.may_answer[path].wait()
        if path in self.fails:
            raise RuntimeError(path)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await self.may_end[path].wait()
        await send({"type": "http.response.body", "body": b""})


async def ask(
    app: TakeTurns, path: str, method: str = "GET", statuses: list[int] | None = None
) -> None:
    async def receive() -> Any:
        await checkpoint()

    async def send(message: Any) -> None:
        if statuses is not None and message["type"] == "http.response.start":
            statuses.append(message["status"])
        await checkpoint()

    scope: Any = {"type": "http", "method": method, "path": path, "state": {"request_id": "1"}}
    with contextlib.suppress(RuntimeError):
        await app(scope, receive, send)


@contextlib.asynccontextmanager
async def all_turns_taken() -> AsyncIterator[tuple[Handler, TakeTurns, TaskGroup]]:
    handler = Handler()
    app = TakeTurns(handler)
    async with anyio.create_task_group() as tasks:
        for number in range(READS):
            tasks.start_soon(ask, app, f"/{number}")
        await anyio.wait_all_tasks_blocked()
        yield handler, app, tasks
        tasks.cancel_scope.cancel()


async def test_so_many_at_once_and_the_oldest_first():
    handler = Handler()
    app = TakeTurns(handler)
    paths = [f"/{number}" for number in range(READS + 3)]
    async with anyio.create_task_group() as tasks:
        for path in paths:
            tasks.start_soon(ask, app, path)
            await anyio.wait_all_tasks_blocked()
        assert handler.begun == paths[:READS]

        handler.may_answer[paths[1]].set()  # its answer has begun: as an event stream it may go on
        await anyio.wait_all_tasks_blocked()
        assert handler.begun == paths[: READS + 1]

        handler.fails.add(paths[0])
        handler.may_answer[paths[0]].set()
        await anyio.wait_all_tasks_blocked()
        assert handler.begun == paths[: READS + 2]

        handler.may_end[paths[1]].set()  # its turn was given back before, and only once
        await anyio.wait_all_tasks_blocked()
        assert handler.begun == paths[: READS + 2]
        tasks.cancel_scope.cancel()


async def test_who_gives_up_waiting_takes_no_turn():
    async with all_turns_taken() as (handler, app, tasks), anyio.create_task_group() as impatient:
        impatient.start_soon(ask, app, "/gone")
        await anyio.wait_all_tasks_blocked()
        impatient.cancel_scope.cancel()
        tasks.start_soon(ask, app, "/next")
        handler.may_answer["/0"].set()
        with anyio.CancelScope(shield=True):
            await anyio.wait_all_tasks_blocked()
        assert handler.begun == [*(f"/{number}" for number in range(READS)), "/next"]


async def test_who_waits_too_long_is_refused(monkeypatch):
    monkeypatch.setattr("api.limits.WAIT_S", 0)
    statuses = []
    async with all_turns_taken() as (handler, app, tasks):
        await ask(app, "/late", statuses=statuses)
        assert (statuses, "/late" in handler.begun) == ([503], False)
        handler.may_answer["/0"].set()
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(ask, app, "/next")  # who was refused keeps no turn
        await anyio.wait_all_tasks_blocked()
        assert "/next" in handler.begun


async def test_requests_that_need_no_key_come_one_at_a_time_and_keep_nobody_waiting():
    handler = Handler()
    app = TakeTurns(handler)
    async with anyio.create_task_group() as tasks:
        for path in (*["/openapi.json"] * 3, "/v1/jobs"):
            tasks.start_soon(ask, app, path)
        await anyio.wait_all_tasks_blocked()
        assert handler.begun == ["/openapi.json", "/v1/jobs"]
        handler.may_answer["/openapi.json"].set()
        await anyio.wait_all_tasks_blocked()
        assert handler.begun.count("/openapi.json") == 3
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/jobs"),
        ("DELETE", "/v1/watches/1"),
        ("GET", "/readyz"),
        ("GET", "/healthz"),
        ("GET", "/v1/exports/L40S.tar"),
    ],
)
async def test_what_writes_takes_long_or_tells_of_health_does_not_wait(method, path):
    async with all_turns_taken() as (handler, app, tasks):
        tasks.start_soon(ask, app, path, method)
        await anyio.wait_all_tasks_blocked()
        assert path in handler.begun

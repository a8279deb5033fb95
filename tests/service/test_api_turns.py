"""How many requests are worked on at once, and who waits for whom."""

from collections import Counter

import anyio
from starlette.types import Message, Receive, Scope, Send

from api.limits import TakeTurns

MANY = 100


def test_requests_without_a_key_come_one_at_a_time_and_keep_nobody_waiting():
    inside: Counter[str] = Counter()
    most: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    held = anyio.Event()

    async def work(scope: Scope, _: Receive, send: Send) -> None:
        path = scope["path"]
        inside[path] += 1
        most[path] = max(most[path], inside[path])
        if path == "/openapi.json":
            await held.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        inside[path] -= 1
        answered[path] += 1

    async def receive() -> Message:
        raise AssertionError

    async def send(_: Message) -> None: ...

    async def ask_all() -> None:
        turns = TakeTurns(work)

        async def ask(path: str) -> None:
            scope = {"type": "http", "method": "GET", "path": path, "state": {"request_id": "1"}}
            await turns(scope, receive, send)

        async with anyio.create_task_group() as tasks:
            for _ in range(MANY):
                tasks.start_soon(ask, "/openapi.json")
            await anyio.wait_all_tasks_blocked()
            for path in ("/v1/jobs", "/healthz"):
                await ask(path)
            assert answered == {"/v1/jobs": 1, "/healthz": 1}
            held.set()

    anyio.run(ask_all)
    assert most["/openapi.json"] == 1
    assert answered["/openapi.json"] == MANY

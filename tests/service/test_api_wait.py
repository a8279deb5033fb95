"""`GET /v1/jobs/{id}?wait=...`: the answer comes when the job ends, and waiting costs nobody."""

from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import anyio
import pytest
from api_server import NEVER, Answer, Server, serving, work
from test_api import eventually

from api import streams
from api.middleware import Observe
from api.settings import ApiSettings
from api.streams import MOST, MOST_OF_ONE, Streams
from tuner.errors import UnusableStore
from tuner.jobs.job import JobEvent
from tuner.store.connect import connect
from tuner.store.database import Database
from tuner.store.leases import Leases
from tuner.store.workers import Figures
from workers.metrics import Metrics
from workers.settings import Settings

NOW = datetime.now(timezone.utc)


@pytest.fixture
def clients():
    with ThreadPoolExecutor(MOST_OF_ONE) as pool:
        yield pool


def waiting(server: Server, clients: ThreadPoolExecutor, job_id: str) -> Future[Answer]:
    before = server.app.state.api.streams.waiting
    future = clients.submit(server.call, "GET", f"/v1/jobs/{job_id}?wait=60")
    eventually(lambda: server.app.state.api.streams.waiting > before)
    return future


def test_the_answer_comes_when_the_job_ends(server, store_url, clients):
    done, cancelled = server.submit(seed=1)["id"], server.submit(seed=2)["id"]
    asked = [waiting(server, clients, job_id) for job_id in (done, done, cancelled)]
    with Leases.open(store_url) as leases:
        work(leases)
    server.call("POST", f"/v1/jobs/{cancelled}/cancel")
    answers = [future.result(30).json for future in asked]
    assert [one["state"] for one in answers] == ["done", "done", "cancelled"]
    assert answers[0] == server.call("GET", f"/v1/jobs/{done}").json
    eventually(lambda: server.app.state.api.streams.waiting == 0)
    assert server.call("GET", f"/v1/jobs/{done}?wait=60").json["state"] == "done"  # at once


def test_without_an_end_the_job_is_shown_as_it_is(store_url):
    settings = replace(ApiSettings(Settings(store_url), no_auth=True), wait_s=1)
    with serving(settings) as server:
        job_id = server.submit()["id"]
        assert server.call("GET", f"/v1/jobs/{job_id}?wait=60").json["state"] == "queued"
        assert server.call("GET", f"/v1/jobs/{job_id}?wait=0").json["state"] == "queued"
        server.call("GET", f"/v1/jobs/{NEVER}?wait=60").problem(404)
        for wrong in ("61", "-1", "x", "1.5"):
            assert "wait: " in server.call("GET", f"/v1/jobs/{job_id}?wait={wrong}").problem(422)


def test_those_who_wait_hold_neither_threads_nor_turns(server, clients):
    job_id = server.submit()["id"]
    asked = [waiting(server, clients, job_id) for _ in range(MOST_OF_ONE)]  # 40 threads work
    assert len(server.call("GET", "/v1/jobs").json["jobs"]) == 1
    one_more = server.call("GET", f"/v1/jobs/{job_id}?wait=60")
    assert one_more.json["state"] == "queued"  # too many wait: it was answered at once
    server.call("POST", f"/v1/jobs/{job_id}/cancel")
    assert {future.result(30).json["state"] for future in asked} == {"cancelled"}


class Jobs:
    """Jobs whose events the test makes; the store may be away."""

    def __init__(self) -> None:
        self.kinds: dict[str, list[str]] = {name: ["submitted"] for name in "xy"}
        self.away = False
        self.asked: list[set[str]] = []

    def counts(self, job_ids: Collection[str]) -> dict[str, int]:
        self.asked.append(set(job_ids))
        if self.away:
            raise UnusableStore("it is away")
        return {job_id: len(self.kinds[job_id]) for job_id in job_ids}

    def events(self, job_id: str, after: int, limit: int) -> list[JobEvent]:
        numbered = enumerate(self.kinds[job_id], start=1)
        return [JobEvent(job_id, seq, kind, NOW, {}) for seq, kind in numbered if seq > after]


class Client:
    """A request whose client goes when the test says so."""

    def __init__(self) -> None:
        self.gone = anyio.Event()

    async def receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}


@pytest.mark.anyio
class TestWaits:
    @pytest.fixture
    def anyio_backend(self):
        return "asyncio"

    @pytest.fixture(autouse=True)
    def quickly(self, monkeypatch):
        monkeypatch.setattr(streams, "POLL_S", 0.0)

    async def test_one_look_is_for_all_and_a_store_that_is_away_comes_back(self):
        jobs, ended = Jobs(), []
        waiting = Streams(jobs.counts, jobs.events, frozenset, 9, 9)
        jobs.away = True

        async def wait(job_id: str) -> None:
            await waiting.until_ended(job_id, 0, Client(), "a", 600)
            ended.append(job_id)

        with anyio.fail_after(30):
            async with anyio.create_task_group() as looking, anyio.create_task_group() as tasks:
                looking.start_soon(waiting.watch)
                for job_id in ("x", "x", "y"):
                    tasks.start_soon(wait, job_id)
                while {"x", "y"} not in jobs.asked:
                    await anyio.sleep(0)
                jobs.kinds["y"] += ["leased", "done"]
                jobs.away = False
                while not ended:
                    await anyio.sleep(0)
                assert (ended, waiting.waiting) == (["y"], 2)
                jobs.kinds["x"] += ["dead"]
                while len(ended) < 3:
                    await anyio.sleep(0)
                looking.cancel_scope.cancel()
        assert (ended, waiting.waiting) == (["y", "x", "x"], 0)

    async def test_a_client_that_has_gone_waits_no_more(self):
        waiting, client = Streams(Jobs().counts, Jobs().events, frozenset, 9, 9), Client()
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(waiting.until_ended, "x", 1, client, "a", 600)
                await anyio.sleep(0)
                assert waiting.waiting == 1
                client.gone.set()
        assert waiting.waiting == 0

    async def test_more_than_the_most_are_answered_at_once(self):
        waiting = Streams(Jobs().counts, Jobs().events, frozenset, 9, 9)
        async with anyio.create_task_group() as tasks:
            for number in range(MOST):
                client = f"client-{number // MOST_OF_ONE}"
                tasks.start_soon(waiting.until_ended, "x", 1, Client(), client, 600)
            await anyio.sleep(0)
            assert waiting.waiting == MOST
            with anyio.fail_after(30):
                await waiting.until_ended("x", 1, Client(), "another", 600)
            tasks.cancel_scope.cancel()
        assert waiting.waiting == 0

    async def test_waiting_does_not_count_as_a_slow_answer(self):
        async def app(scope: Any, receive: Any, send: Any) -> None:
            scope["state"]["waited_s"] = 1000.0
            await send({"type": "http.response.start", "status": 200, "headers": []})

        async def send(message: Any) -> None:
            """Nobody listens."""

        metrics = Metrics(Figures(Database(connect("sqlite://"))))
        state = type("State", (), {"api": type("Api", (), {"metrics": metrics})})
        scope: Any = {"type": "http", "method": "GET", "path": "/", "headers": []}
        scope["app"] = type("App", (), {"state": state})
        await Observe(app)(scope, send, send)
        (line,) = (
            one for one in metrics.text().decode().splitlines() if "request_seconds_sum" in one
        )
        assert float(line.split()[-1]) < -900

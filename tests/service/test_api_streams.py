"""Event streams share one reader, and a key has only so many of them."""

import http.client
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timezone

import anyio
import pytest
from api_server import Server, eventually, serving, work
from visitor import Visitor

from api.settings import ApiSettings
from api.streams import FollowedJob, Streams
from tuner.errors import StoreUnreachable
from tuner.jobs.job import JobEvent
from tuner.store.keys import KeyStore, Scope
from tuner.store.leases import Leases
from workers.settings import Settings

NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)


class FakeStore:
    """The events of jobs, and how often they were asked for."""

    def __init__(self) -> None:
        self.numbers: Counter[str] = Counter()
        self.looks: list[int] = []  # how many jobs each look asked for
        self.reads: Counter[str] = Counter()
        self.away = False
        self.deleted: set[str] = set()

    def counts(self, job_ids: Collection[str]) -> dict[str, int]:
        if self.away:
            raise StoreUnreachable
        self.looks.append(len(job_ids))
        return {one: self.numbers[one] for one in job_ids if one not in self.deleted}

    def events(self, job_id: str, after: int, limit: int) -> Sequence[JobEvent]:
        self.reads[job_id] += 1
        last = min(self.numbers[job_id], after + limit)
        return [JobEvent(job_id, n, "trials", NOW, {}) for n in range(after + 1, last + 1)]


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr("api.streams.POLL_S", 0.005)
    return FakeStore()


async def follow(streams: Streams, job_id: str, until: int, seen: int = 0) -> list[int]:
    """The numbers of a job's events up to one."""
    found: list[int] = []
    with streams.following(job_id) as job:
        while seen < until:
            for event in await job.after(seen):
                seen = event.seq
                found.append(seen)
    return found


async def looks(store: FakeStore, more: int) -> None:
    wanted = len(store.looks) + more
    while len(store.looks) < wanted:
        await anyio.sleep(0.001)


def streams_of(store: FakeStore) -> Streams:
    return Streams(store.counts, store.events, frozenset, most=1000, most_per_key=1000)


def test_streams_that_wait_cost_one_query_for_all(store):
    async def main() -> None:
        streams = streams_of(store)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(streams.watch)
            for n in range(200):
                tasks.start_soon(follow, streams, f"job {n % 100}", 1)
            await looks(store, 20)
            assert store.looks[-10:] == [100] * 10
            reads = store.reads.total()
            await looks(store, 20)
            assert store.reads.total() == reads  # nothing has happened, so nothing is read
            store.numbers["job 7"] = 1
            await looks(store, 3)
            assert store.reads.total() == reads + 1  # for both of its streams
            tasks.cancel_scope.cancel()
        assert store.looks[-1] == 99

    anyio.run(main)


def test_without_streams_nothing_is_asked(store):
    async def main() -> None:
        streams = streams_of(store)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(streams.watch)
            await anyio.wait_all_tasks_blocked()
            assert store.looks == []
            store.numbers["a"] = 1
            assert await follow(streams, "a", 1) == [1]
            while streams._anybody.is_set():  # until its reader waits for the next stream
                await anyio.sleep(0.001)
            asked = len(store.looks)
            await anyio.wait_all_tasks_blocked()
            assert len(store.looks) == asked
            tasks.cancel_scope.cancel()

    anyio.run(main)


def test_every_stream_gets_every_event_once_from_where_it_began(store):
    async def main() -> None:
        streams, found = streams_of(store), {}
        store.numbers["a"] = 1200  # more than two pages

        async def stream(seen: int) -> None:
            found[seen] = await follow(streams, "a", 1210, seen)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(streams.watch)
            for seen in (0, 3, 700, 1199, 1205):
                tasks.start_soon(stream, seen)
            for _ in range(10):
                await looks(store, 1)
                store.numbers["a"] += 1
            while len(found) < 5:
                await anyio.sleep(0.001)
            tasks.cancel_scope.cancel()
        assert found == {seen: list(range(seen + 1, 1211)) for seen in (0, 3, 700, 1199, 1205)}

    anyio.run(main)


def test_streams_end_when_the_store_does_not_answer_and_may_begin_again(store):
    async def main() -> None:
        streams, ended = streams_of(store), 0

        async def stream(job: FollowedJob) -> None:
            nonlocal ended
            with pytest.raises(StoreUnreachable):
                await job.after(0)
            ended += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(streams.watch)
            with ExitStack() as followed:
                for job_id in ("a", "b", "b"):
                    job = followed.enter_context(streams.following(job_id))
                    tasks.start_soon(stream, job)
                await looks(store, 2)
                store.away = True
                while ended < 3:
                    await anyio.sleep(0.001)
            store.away = False
            store.numbers["b"] = 1
            assert await follow(streams, "b", 1) == [1]
            tasks.cancel_scope.cancel()

    anyio.run(main)


def test_the_stream_of_a_deleted_job_ends(store):
    async def main() -> None:
        streams = streams_of(store)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(streams.watch)
            with streams.following("a") as job, streams.following("b"):
                await looks(store, 2)
                store.deleted.add("a")
                with anyio.fail_after(30), pytest.raises(StoreUnreachable):
                    await job.after(0)
            tasks.cancel_scope.cancel()

    anyio.run(main)


def stream_of(server: Server, path: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", path, headers=dict(headers))
    return connection.getresponse()


def test_a_stream_ends_with_its_key_or_its_session(store_url, monkeypatch):
    monkeypatch.setattr("api.streams.POLL_S", 0.01)
    monkeypatch.setattr("api.streams.FRESH_S", 0.01)
    with serving(ApiSettings(Settings(store_url))) as server:
        keys: KeyStore = server.app.state.api.keys
        server.key = keys.add("first", Scope.ADMIN)
        path = f"/v1/jobs/{server.submit()['id']}/events"
        admin, server.key = server.key, None
        visitor = Visitor(server)
        visitor.log_in(keys.add("visitor", Scope.READ))
        (cookie,) = (f"{name}={value}" for name, value in visitor.cookies.items())
        sent = {
            "revoked": {"Authorization": f"Bearer {keys.add('revoked', Scope.READ)}"},
            "rotated": {"Authorization": f"Bearer {keys.add('rotated', Scope.READ)}"},
            "logged out": {"Cookie": cookie},
            "stays": {"Authorization": f"Bearer {admin}"},
        }
        streams = {who: stream_of(server, path, headers) for who, headers in sent.items()}
        assert {stream.status for stream in streams.values()} == {200}
        keys.revoke("revoked")
        keys.rotate("rotated")
        visitor.post("/logout")
        stays = streams.pop("stays")
        for who, stream in streams.items():
            assert b"event: cancelled" not in stream.read(), who  # to its end
        eventually(lambda: server.app.state.api.streams.open == 1)
        server.call("POST", path.replace("events", "cancel"), key=admin)
        assert b"event: cancelled" in stays.read()


class TestLimits:
    @pytest.fixture
    def server(self, store_url):
        settings = ApiSettings(Settings(store_url), streams=3, streams_per_key=2)
        with serving(settings) as running:
            running.key = running.app.state.api.keys.add("first", Scope.ADMIN)
            yield running

    def test_a_key_has_only_so_many_and_all_have_so_many(self, server):
        keys = server.app.state.api.keys
        mine, other = keys.add("mine", Scope.SUBMIT), keys.add("other", Scope.READ)
        server.key = mine
        path = f"/v1/jobs/{server.submit()['id']}/events"

        def begin(key: str) -> http.client.HTTPResponse:
            return stream_of(server, path, {"Authorization": f"Bearer {key}"})

        streams = [begin(mine) for _ in range(2)]
        assert [stream.status for stream in streams] == [200, 200]
        refused = server.call("GET", path, key=mine)
        assert refused.problem(429) == "2 event streams of this key are open, and no more may be"
        assert refused.headers["retry-after"] == "5"
        streams.append(begin(other))
        assert streams[2].status == 200
        full = server.call("GET", path, key=other)
        assert full.problem(503) == "3 event streams are open, and no more may be"
        assert server.call("GET", "/v1/jobs", key=mine).status == 200
        streams.pop(0).close()
        eventually(lambda: server.app.state.api.streams.open == 2)
        streams.append(begin(mine))
        assert streams[-1].status == 200
        for stream in streams:
            stream.close()
        eventually(lambda: server.app.state.api.streams.open == 0)

    def test_a_refused_or_finished_stream_keeps_no_place(self, server, store_url):
        path = f"/v1/jobs/{server.submit()['id']}/events"
        with Leases.open(store_url) as leases:
            work(leases)
        for _ in range(5):
            assert server.call("GET", path).status == 200
            assert server.call("GET", path, headers={"Last-Event-ID": "6"}).status == 204
        eventually(lambda: server.app.state.api.streams.open == 0)

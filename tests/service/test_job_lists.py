"""Lists of jobs: filters, orders and pages, in the store on each database and over HTTP."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from api_server import Server, work
from cases import new_request, submit
from databases import both_databases
from sqlalchemy import text, update
from store_writer import PROBLEM
from typer.testing import CliRunner

from tuner.cli.commands import app
from tuner.jobs.client import RemoteQueue
from tuner.jobs.job import JobState
from tuner.jobs.queue import ALL_JOBS, JobQuery
from tuner.store.database import Database
from tuner.store.jobs import JobStore, select_page
from tuner.store.leases import Leases
from tuner.store.tables import jobs as table

REQUEST = new_request(PROBLEM, "L40S", measure="predict", model="deepseek-r1")
NOON = datetime(2026, 11, 1, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
DEAD, FAILED, QUEUED = JobState.DEAD, JobState.FAILED, JobState.QUEUED


class Hourly:
    """A clock that is read once for each job, and goes on an hour each second time."""

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self) -> datetime:
        return NOON + self.reads * HOUR


@pytest.fixture
def jobs(store_url):
    """Twelve jobs, two each hour, in turns of three states and two clients."""
    clock = Hourly()
    with Database.open(store_url) as store:
        opened = JobStore(store, clock)
        for number in range(12):
            clock.reads = number // 2
            job = submit(opened, replace(REQUEST, seed=number), client="ab"[number % 2]).job
            with store.write() as connection:
                state = (QUEUED, DEAD, FAILED)[number % 3].value
                connection.execute(update(table).where(table.c.id == job.id).values(state=state))
        yield opened


def seeds(found: Any) -> list[int]:
    return [job.request.seed for job in found]


def in_pages(jobs: JobStore, query: JobQuery, limit: int) -> list[int]:
    found, after = [], None
    while page := jobs.list(query, after=after, limit=limit):
        found += seeds(page)
        after = page[-1].created_at, page[-1].id
    return found


@both_databases
def test_pages_of_several_states_are_complete(jobs):
    every = jobs.list(limit=50)
    assert every == sorted(every, key=lambda job: (job.created_at, job.id), reverse=True)
    for states in ({DEAD}, {DEAD, FAILED}, {DEAD, FAILED, QUEUED}, set(JobState)):
        wanted = seeds(job for job in every if job.state in states)
        query = JobQuery(states=frozenset(states))
        for limit in (1, 2, 5, 50):
            assert in_pages(jobs, query, limit) == wanted


@both_databases
def test_clients_filter(jobs):
    def found(**fields: Any) -> set[int]:
        return set(seeds(jobs.list(JobQuery(**fields))))

    assert found(client="a", states=frozenset({DEAD, FAILED})) == {2, 4, 8, 10}
    assert found(client="c") == found(device="NVIDIA_H200") == found(model="qwen3") == set()
    assert found(device="NVIDIA_L40S", model="deepseek-r1") == set(range(12))


WALKS = (
    (ALL_JOBS, ["ix_jobs_page"]),
    (JobQuery(client="a"), ["ix_jobs_page_client"]),
    (JobQuery(states=frozenset({DEAD, FAILED})), ["ix_jobs_page_state"] * 2),
)


@both_databases
def test_a_page_is_a_walk_along_an_index(jobs):
    on_postgres = jobs.database.engine.dialect.name == "postgresql"
    word = "EXPLAIN" if on_postgres else "EXPLAIN QUERY PLAN"
    with jobs.database.write() as connection:  # a transaction, for which the settings hold
        if on_postgres:
            connection.execute(text("SET LOCAL enable_seqscan = off"))
            connection.execute(text("SET LOCAL enable_bitmapscan = off"))
        for query, indexes in WALKS:
            statement = select_page(query, (NOON, "x"), 50)
            sql = statement.compile(connection, compile_kwargs={"literal_binds": True})
            plan = [str(row[-1]) for row in connection.exec_driver_sql(f"{word} {sql}")]
            walked = [line for line in plan if "ix_jobs" in line]
            assert len(walked) == len(indexes), plan
            for line, index in zip(walked, indexes, strict=True):
                assert f"{index} " in line, plan
            if not query.states:
                assert not any("Sort" in line or "TEMP B-TREE" in line for line in plan), plan


@pytest.fixture
def leases(server, store_url):
    with Leases.open(store_url) as opened:
        yield opened


def pages(server: Server, path: str, name: str) -> list[list[dict[str, Any]]]:
    """The pages of a list, to the one that says that it is the last."""
    found, after = [], ""
    while True:
        page = server.call("GET", f"{path}{after}").json
        found.append(page[name])
        if page["next"] is None:
            return found
        after = f"&after={page['next']}"


class TestOverHttp:
    def test_a_cursor_belongs_to_its_list(self, server):
        for seed in range(3):
            server.submit(seed=seed)
        first = server.call("GET", "/v1/jobs?limit=1&device=l40s").json
        after = f"after={first['next']}"
        rest = server.call("GET", f"/v1/jobs?device=NVIDIA_L40S&limit=5&{after}").json
        assert len(rest["jobs"]) == 2
        for other in ("", "device=L40S&state=queued", "device=H200"):
            said = server.call("GET", f"/v1/jobs?{other}&{after}").problem(422)
            assert "with other filters" in said
            assert "leave `after` out" in said

    def test_the_command_line_s_client_asks_for_the_same(self, server, leases):
        for seed in range(3):
            server.submit(seed=seed)
        work(leases)
        store, remote = JobStore(leases.database), RemoteQueue(server.url, None)
        for query in (
            ALL_JOBS,
            JobQuery(states=frozenset({JobState.DONE, JobState.CANCELLED})),
            JobQuery(client="local", device="NVIDIA_L40S", model="deepseek-r1"),
        ):
            here, there = store.list(query), remote.list(query)
            assert here
            assert [job.id for job in there] == [job.id for job in here]


@pytest.mark.parametrize(
    "change", [{"effort": {"name": "deep"}}, {"problem": "from_tomorrow:E=1"}, {"measure": None}]
)
def test_a_job_of_another_release_is_listed_as_it_is_stored(
    server, leases, visitor, monkeypatch, change
):
    foreign, other = (server.submit(seed=seed)["id"] for seed in range(2))
    stored = {**server.call("GET", f"/v1/jobs/{foreign}").json["request"], **change}
    with leases.database.write() as connection:
        connection.execute(update(table).where(table.c.id == foreign).values(request=stored))
    listed = {job["id"]: job for job in server.call("GET", "/v1/jobs").json["jobs"]}
    assert listed[foreign]["request"] == stored
    assert "this release cannot read its request" in listed[foreign]["waiting"]
    assert listed[foreign]["unreadable"] in listed[foreign]["waiting"]
    assert "unreadable" not in listed[other]
    assert [job.id for job in RemoteQueue(server.url, None).list()] == [other, foreign]
    monkeypatch.setenv("TUNER_SERVER", server.url)
    for arguments in (["jobs"], ["jobs", "show", foreign]):
        shown = CliRunner().invoke(app, arguments)
        assert (shown.exit_code, foreign[:12] in shown.stdout) == (0, True), shown.stderr
    assert foreign in visitor.open("/jobs")
    assert "this release cannot read its request" in visitor.open(f"/jobs/{foreign}")
    set_running = update(table).where(table.c.id == foreign).values(state="running")
    with leases.database.write() as connection:
        connection.execute(set_running)
    assert foreign in visitor.open("/")
    with leases.database.write() as connection:
        connection.execute(set_running.values(state="queued"))
    assert server.call("POST", f"/v1/jobs/{foreign}/cancel").json["state"] == "cancelled"
    assert server.call("DELETE", f"/v1/jobs/{foreign}").status == 204


class TestTheLastPage:
    """`next` is null exactly where no page follows, also behind a full one."""

    def test_of_jobs(self, server):
        for seed in range(4):
            server.submit(seed=seed)
        assert [len(page) for page in pages(server, "/v1/jobs?limit=2", "jobs")] == [2, 2]
        assert [len(page) for page in pages(server, "/v1/jobs?limit=3", "jobs")] == [3, 1]


@pytest.mark.parametrize(
    ("query", "pointer", "said"),
    [
        ("device=L41S", "", "did you mean 'L40S'?"),
        ("stat=done", "stat", "unknown field; did you mean 'state'?"),
        ("after=AAAA", "", "take `next` of the page before"),
        ("after=WyIyMDI2IiwgIngiXQ", "", "take `next` of the page before"),
        ("limit=0", "limit", "limit: "),
        ("model=%00", "model", "model: "),
        ("state=done&state=runing", "state", "did you mean 'running'?"),
    ],
)
def test_a_mistake_is_named(untouched, query, pointer, said):
    answer = untouched.call("GET", f"/v1/jobs?{query}")
    assert said in answer.problem(422)
    assert [one["pointer"] for one in answer.json.get("errors", [])] == [pointer] * bool(pointer)

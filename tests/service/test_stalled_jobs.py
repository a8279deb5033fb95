"""A job whose worker died, and a job that nobody can do, say so wherever jobs are shown."""

from datetime import datetime, timedelta, timezone

import pytest
from api_server import Server, serving
from store_writer import KEY, batch

from api.settings import ApiSettings
from api.state import Fleet
from tuner.jobs.client import RemoteQueue
from tuner.jobs.job import JobFilter
from tuner.jobs.workers import WorkerInfo
from tuner.store.database import Database
from tuner.store.jobs import LocalQueue
from tuner.store.keys import Scope
from tuner.store.leases import Leases
from tuner.store.workers import WorkerStore
from workers.settings import Settings

WORKER = WorkerInfo("w-1", "gpu0@host", "host", "GPU-1", "NVIDIA_L40S", (), ("sglang==0.5.16",), {})


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'tuner.db'}"


@pytest.fixture
def server(url):
    with serving(ApiSettings(Settings(url))) as running:
        running.key = running.app.state.api.keys.add("me", Scope.ADMIN)
        yield running


def begin(server: Server, url: str, ago: timedelta) -> None:
    """A worker takes a job and stores trials, and does nothing more."""
    then = datetime.now(timezone.utc) - ago
    with Database.open(url) as store:
        WorkerStore(store, lambda: then).beat(WORKER)
        leases = Leases(store)
        lease = leases.claim([JobFilter(needs_gpu=True)], WORKER.id)
        assert lease
        leased = leases.store(lease)
        leased.add_trials(leased.begin_run(KEY), batch(0))
        Leases(store, lambda: then).heartbeat(lease)  # its last one
    server.app.state.api.fleet = Fleet(server.app.state.api.workers)


def test_a_job_of_a_silent_worker_is_stalled_everywhere(server, url, visitor):
    job_id = server.submit(engine="sglang==0.5.16")["id"]
    begin(server, url, timedelta(seconds=35))
    job = server.call("GET", f"/v1/jobs/{job_id}").json
    assert job["state"] == "running"  # what is stored: its worker may come back
    stalled = job["stalled"]
    assert stalled["worker"] == "gpu0@host"
    heartbeat, ends = (
        datetime.fromisoformat(stalled[name].replace("Z", "+00:00"))
        for name in ("heartbeat_at", "lease_ends_at")
    )
    assert ends - heartbeat == timedelta(seconds=45)
    assert stalled["another"] is False
    assert f"gpu0@host has sent no heartbeat since {heartbeat:%H:%M:%S} UTC" in stalled["why"]
    assert f"its lease ends at {ends:%H:%M:%S} UTC, and no other living" in stalled["why"]
    (listed,) = server.call("GET", "/v1/jobs").json["jobs"]
    assert (listed["stalled"], listed["waiting"]) == (stalled, stalled["why"])
    progress = server.call("GET", f"/v1/jobs/{job_id}/progress").json
    assert progress["left_s"] is progress["tried_a_minute"] is None
    with LocalQueue.open(url) as local:
        for queue in (local, RemoteQueue(server.url, server.key)):
            assert [why for _, why in queue.list_waiting()] == [stalled["why"]]
            assert queue.waiting(queue.get(job_id)) == stalled["why"]
    page = visitor.open(f"/jobs/{job_id}")
    assert 'class="badge stalled"' in page
    assert "Its worker gpu0@host sends no heartbeats" in page
    assert 'id="left"' not in page
    assert "tried, " not in page.partition('id="rate"')[2].partition("</small>")[0]
    assert 'class="badge stalled"' in visitor.open("/jobs")


def test_another_worker_takes_it_when_the_lease_ends(server, url):
    job_id = server.submit(engine="sglang==0.5.16")["id"]
    begin(server, url, timedelta(minutes=5))
    other = WorkerInfo(**{**vars(WORKER), "id": "w-2", "name": "gpu1@host", "gpu": "GPU-2"})
    server.app.state.api.workers.beat(other)
    server.app.state.api.fleet = Fleet(server.app.state.api.workers)
    stalled = server.call("GET", f"/v1/jobs/{job_id}").json["stalled"]
    assert stalled["another"]
    assert stalled["why"].endswith("another worker takes the job soon")


def test_a_job_with_heartbeats_is_not_stalled(server, url):
    job_id = server.submit(engine="sglang==0.5.16")["id"]
    begin(server, url, timedelta(seconds=20))
    job = server.call("GET", f"/v1/jobs/{job_id}").json
    assert (job["stalled"], job["waiting"]) == (None, "")


def test_the_list_says_why_a_job_waits(server, url, visitor):
    server.submit(engine="sglang==0.5.16")
    never = "no worker with NVIDIA_L40S and sglang 0.5.16 was ever seen"
    why = f"{never}: start `tuner worker` on a host with both"
    (listed,) = server.call("GET", "/v1/jobs").json["jobs"]
    assert (listed["waiting"], listed["stalled"]) == (why, None)
    assert why in visitor.open("/jobs")
    with LocalQueue.open(url) as queue:
        assert [reason for _, reason in queue.list_waiting()] == [why]


def test_chosen_jobs_are_cancelled_and_tried_again_together(server, visitor):
    ids = [server.submit(seed=seed)["id"] for seed in range(3)]

    def change(what: str, came: str) -> list[str]:
        answer = visitor.post("/jobs/chosen?state=queued", {"do": what, "job": ",".join(ids[:2])})
        assert (answer.status, answer.headers["location"]) == (303, f"../jobs?state=queued{came}")
        return [server.call("GET", f"/v1/jobs/{one}").json["state"] for one in ids]

    ended, already_over = "&came=2%2C0%2C0%2C0%2C0", "&came=0%2C0%2C0%2C2%2C0"
    assert change("cancel", ended) == ["cancelled", "cancelled", "queued"]
    assert change("cancel", already_over) == ["cancelled", "cancelled", "queued"]
    assert change("retry", "") == ["queued"] * 3


def test_a_chosen_job_that_is_gone_holds_up_no_other(server, visitor):
    ids = [server.submit(seed=seed)["id"] for seed in range(3)]
    for one in ids:
        server.call("POST", f"/v1/jobs/{one}/cancel")
    server.call("DELETE", f"/v1/jobs/{ids[1]}")
    answer = visitor.post("/jobs/chosen", {"do": "retry", "job": ",".join(ids)})
    assert answer.status == 303
    states = [server.call("GET", f"/v1/jobs/{one}").json["state"] for one in (ids[0], ids[2])]
    assert states == ["queued", "queued"]


def test_the_store_s_clock_says_which_job_is_stalled(server, url):
    """This machine's clock may be ahead of PostgreSQL's."""
    job_id = server.submit(engine="sglang==0.5.16")["id"]
    begin(server, url, timedelta(seconds=5))
    ahead = datetime.now(timezone.utc) + timedelta(seconds=30)
    for shown, stalled in ((ahead, True), (ahead - timedelta(seconds=30), False)):
        workers = WorkerStore(server.app.state.api.store, lambda now=shown: now)
        server.app.state.api.fleet = Fleet(workers)
        found = server.call("GET", f"/v1/jobs/{job_id}").json["stalled"]
        assert (found is not None) is stalled

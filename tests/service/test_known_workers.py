"""Workers are known: their rows, drains, and answers for jobs that nobody can do."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from types import SimpleNamespace

import pytest
from api_server import JOB, Server, serving
from cases import new_request, submit
from databases import both_databases
from store_writer import PROBLEM

from api.settings import ApiSettings
from api.state import Fleet
from tuner.errors import BadInput
from tuner.jobs.job import JobFilter
from tuner.jobs.workers import ALIVE, FORGET_AFTER, WorkerInfo, WorkerState
from tuner.store.jobs import JobStore
from tuner.store.leases import Leases
from tuner.store.workers import WorkerStore
from workers.fleet import RESTART_S, Member
from workers.settings import Settings

L40S = WorkerInfo(
    id="gpu-0@a:1:ff",
    name="gpu-0@a",
    host="a",
    gpu="GPU-1",
    device="NVIDIA_L40S",
    devices=None,
    engines=("sglang==0.5.12",),
    packages={"torch": "2.9.0", "triton": "3.5.0"},
)
CPU = replace(L40S, id="cpu-0@a:2:ff", name="cpu-0@a", gpu="", device="", devices=())
ANY = [JobFilter(needs_gpu=False)]


@pytest.fixture
def workers(store, clock):
    return WorkerStore(store, clock)


def doing(workers: WorkerStore) -> dict[str, str]:
    return {one.info.name: one.doing for one in workers.list()}


class TestRows:
    def test_a_worker_is_stored_as_it_describes_itself(self, workers, clock):
        assert workers.beat(L40S) is WorkerState.ACTIVE
        clock.advance(timedelta(seconds=10))
        upgraded = replace(L40S, engines=("sglang==0.5.16",))
        workers.beat(upgraded)
        (found,) = workers.list()
        assert found.info == upgraded
        assert (found.seen_at, found.started_at) == (clock.now, clock.now - timedelta(seconds=10))

    def test_one_that_is_not_seen_is_lost_and_forgotten_in_the_end(self, workers, clock):
        workers.beat(L40S)
        clock.advance(ALIVE + timedelta(seconds=1))
        workers.beat(CPU)
        assert doing(workers) == {"gpu-0@a": "lost", "cpu-0@a": "idle"}
        assert [one.info.name for one in workers.list(living=True)] == ["cpu-0@a"]
        workers.stopped(CPU.id)
        assert doing(workers)["cpu-0@a"] == "stopped"
        clock.advance(FORGET_AFTER)
        assert workers.forget() == 1

    def test_one_that_died_before_the_clock_went_back_is_lost(self, workers, clock):
        workers.beat(L40S)
        clock.advance(-timedelta(hours=1))
        workers.beat(CPU)
        assert doing(workers) == {"gpu-0@a": "lost", "cpu-0@a": "idle"}
        assert [one.info.name for one in workers.list(living=True)] == ["cpu-0@a"]
        with pytest.raises(BadInput):
            workers.drain("gpu-0@a")
        workers.beat(L40S)
        assert doing(workers)["gpu-0@a"] == "idle"

    @both_databases
    def test_a_worker_has_the_job_that_it_holds(self, workers, store, clock):
        workers.beat(CPU)
        jobs, leases = JobStore(store, clock), Leases(store, clock)
        job_id = submit(jobs, new_request(PROBLEM, "L40S", measure="predict")).job.id
        lease = leases.claim(ANY, CPU.id)
        assert lease is not None
        assert workers.list()[0].job_id == job_id
        workers.drain("cpu-0@a")
        assert doing(workers) == {"cpu-0@a": "draining"}
        leases.fail(lease, "no")
        assert doing(workers) == {"cpu-0@a": "drained"}

    @pytest.mark.parametrize("name", ["gpu-0@a", "gpu-0@a:1:ff", "a"])
    def test_drained_by_name_id_or_host_it_claims_nothing(self, workers, store, clock, name):
        workers.beat(L40S)
        leases = Leases(store, clock)
        submit(JobStore(store, clock), new_request(PROBLEM, "L40S", measure="predict"))
        assert workers.drain(name) == [L40S.id]
        workers.beat(L40S)  # which changes nothing
        assert leases.claim(ANY, L40S.id) is None
        workers.resume(name)
        assert leases.claim(ANY, L40S.id) is not None

    @both_databases
    def test_a_drained_worker_that_crashed_is_drained_when_it_is_back(self, workers, store, clock):
        workers.beat(L40S)
        submit(JobStore(store, clock), new_request(PROBLEM, "L40S", measure="predict"))
        workers.drain("gpu-0@a")
        again = replace(L40S, id="gpu-0@a:2:ff")
        clock.advance(timedelta(seconds=3))
        workers.beat(again)
        assert Leases(store, clock).claim(ANY, again.id) is None
        workers.resume("gpu-0@a")
        assert Leases(store, clock).claim(ANY, again.id) is not None

    @both_databases
    def test_set_aside_outlives_a_crash_and_ends_with_a_restart(self, workers, clock):
        workers.beat(L40S)
        workers.set_aside(L40S.id, "no driver")
        clock.advance(timedelta(seconds=3))
        second, third = (replace(L40S, id=f"gpu-0@a:{n}:ff") for n in (2, 3))
        assert workers.beat(second) is WorkerState.SET_ASIDE
        assert workers.list()[-1].reason == "no driver"
        workers.stopped(second.id)
        clock.advance(timedelta(seconds=3))
        assert workers.beat(third) is WorkerState.ACTIVE

    @both_databases
    def test_a_worker_that_dies_again_and_again_has_few_rows(self, workers, clock):
        for start in range(100):
            workers.beat(replace(L40S, id=f"gpu-0@a:{start}:ff"))
            clock.advance(timedelta(seconds=2))
        assert len(workers.list()) <= ALIVE.total_seconds() / 2 + 1

    def test_a_name_that_nobody_living_has_is_refused(self, workers, clock):
        workers.beat(L40S)
        with pytest.raises(BadInput, match=r"'gpu-1@a'; did you mean 'gpu-0@a'\?"):
            workers.drain("gpu-1@a")
        clock.advance(ALIVE)
        with pytest.raises(BadInput):
            workers.drain("gpu-0@a")


def test_a_process_that_dies_at_once_is_started_more_and_more_rarely(monkeypatch):
    now = 1000.0
    monkeypatch.setattr("workers.fleet.time", SimpleNamespace(monotonic=lambda: now))
    member = Member(0, None, None, {})
    member._command = ["false"]
    starts = []
    for _ in range(1200):
        before = member.starts
        member.keep_alive()
        member.wait()
        starts += [now] * (member.starts - before)
        now += 0.5
    pauses = [later - earlier for earlier, later in pairwise(starts)]
    assert pauses[:6] == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0]
    assert set(pauses[6:]) == {60.0}
    now += 600.0  # it lived for long
    member.keep_alive()
    assert member._pause_s == RESTART_S


class TestOverHttp:
    def api_workers(self, server: Server) -> WorkerStore:
        return server.app.state.api.workers

    def look_again(self, server: Server) -> None:
        api = server.app.state.api
        api.fleet = Fleet(api.workers)

    def test_a_job_that_nobody_can_do_says_so_at_once_and_later(self, server):
        never = "no worker with NVIDIA_L40S and sglang 0.5.16 was ever seen"
        never += ": start `tuner worker` on a host with both"
        job = server.submit(engine="sglang==0.5.16")
        assert job["waiting"] == never
        events = server.app.state.api.jobs.events(job["id"])
        assert [one.kind for one in events] == ["submitted", "waiting"]
        assert events[1].data == {"reason": never}
        self.api_workers(server).beat(L40S)
        self.look_again(server)
        assert server.call("GET", f"/v1/jobs/{job['id']}").json["waiting"] == never
        self.api_workers(server).beat(replace(L40S, engines=("sglang==0.5.16",)))
        self.look_again(server)
        assert server.call("GET", f"/v1/jobs/{job['id']}").json["waiting"] == ""

    def test_an_engine_without_a_version_gets_the_one_of_a_living_worker(self, server):
        self.api_workers(server).beat(L40S)
        self.look_again(server)  # the first page, made at the start, has already asked for workers
        job = server.submit()
        assert job["request"]["engine"] == "sglang==0.5.12"
        assert job["waiting"] == ""
        assert "sglang 0.5.12 " in job["notes"][0]  # the problem is that version's, too
        predicted = server.submit(measure="predict")
        assert predicted["request"]["engine"] == "sglang==0.5.12"

    def test_workers_are_listed_drained_and_resumed(self, server):
        self.api_workers(server).beat(L40S)
        (one,) = server.call("GET", "/v1/workers").json["workers"]
        assert (one["name"], one["device"], one["state"]) == ("gpu-0@a", "NVIDIA_L40S", "idle")
        assert one["packages"] == {"torch": "2.9.0", "triton": "3.5.0"}
        drained = server.call("POST", "/v1/workers/gpu-0@a/drain")
        assert (drained.status, drained.json["workers"][0]["state"]) == (200, "drained")
        resumed = server.call("POST", "/v1/workers/a/resume")
        assert resumed.json["workers"][0]["state"] == "idle"
        refused = server.call("POST", "/v1/workers/gpu-1@a/drain").problem(404)
        assert refused.endswith("did you mean 'gpu-0@a'?; GET /v1/workers lists them")

    def test_a_batch_has_an_answer_for_each_job(self, server):
        wrong = {**JOB, "model": "deepseek-r11"}
        sent = {"jobs": [JOB, wrong, {**JOB, "seed": 1}, JOB]}
        answer = server.call("POST", "/v1/jobs:batch", sent, {"Idempotency-Key": "b1"})
        assert answer.status == 200
        first, refused, second, again = answer.json["jobs"]
        assert (first["job"]["created"], second["job"]["created"]) == (True, True)
        assert (again["job"]["created"], again["job"]["id"]) == (False, first["job"]["id"])
        assert refused["job"] is None
        assert refused["problem"]["status"] == 422
        assert "did you mean 'deepseek-r1'?" in refused["problem"]["detail"]
        assert len(server.call("GET", "/v1/jobs").json["jobs"]) == 2
        repeated = server.call("POST", "/v1/jobs:batch", sent, {"Idempotency-Key": "b1"})
        assert repeated.headers["idempotent-replayed"] == "true"
        ids = [one["job"]["id"] for one in repeated.json["jobs"] if one["job"]]
        assert ids == [first["job"]["id"], second["job"]["id"], first["job"]["id"]]
        other = server.call("POST", "/v1/jobs:batch", {"jobs": [JOB]}, {"Idempotency-Key": "b1"})
        assert "another body" in other.problem(422)

    def test_a_malformed_batch_adds_nothing(self, server):
        wrong = server.call("POST", "/v1/jobs:batch", {"jobs": [JOB, {**JOB, "tp": 0}]})
        assert wrong.json["errors"][0]["pointer"] == "/jobs/1/tp"
        for body in ({"jobs": []}, {"jobs": [JOB] * 101}):
            server.call("POST", "/v1/jobs:batch", body).problem(422)
        assert server.call("GET", "/v1/jobs").json["jobs"] == []

    def test_a_key_may_queue_only_so_many_jobs(self, store_url):
        settings = ApiSettings(Settings(store_url), queued=3, no_auth=True)
        with serving(settings) as server:
            jobs = [{**JOB, "seed": seed} for seed in range(3)]
            assert server.call("POST", "/v1/jobs:batch", {"jobs": jobs}).status == 200
            refused = server.call("POST", "/v1/jobs", {**JOB, "seed": 9})
            assert "has 3 queued jobs, and may have 3" in refused.problem(429)
            assert refused.headers["retry-after"] == "60"
            # A batch is added as a whole, or not at all; what is there already does not count.
            batch = {"jobs": [*jobs, {**JOB, "seed": 9}]}
            assert "may have 3" in server.call("POST", "/v1/jobs:batch", batch).problem(429)
            assert server.call("POST", "/v1/jobs:batch", {"jobs": jobs[::-1]}).status == 200

    def test_a_full_queue_refuses_no_repetition(self, store_url):
        settings = ApiSettings(Settings(store_url), queued=1, no_auth=True)
        with serving(settings) as server:
            mine = {"Idempotency-Key": "k"}
            first = server.call("POST", "/v1/jobs", JOB, headers=mine).json["id"]
            again = server.call("POST", "/v1/jobs", JOB, headers=mine)
            assert (again.status, again.headers["idempotent-replayed"]) == (202, "true")
            equal = server.call("POST", "/v1/jobs", JOB)
            assert (equal.status, equal.json["id"], equal.json["created"]) == (202, first, False)
            # What was cancelled has room again, and its retry counts as any other job.
            server.call("POST", f"/v1/jobs/{first}/cancel")
            assert server.call("POST", "/v1/jobs", {**JOB, "seed": 9}).status == 202
            refused = server.call("POST", f"/v1/jobs/{first}/retry")
            assert "has 1 queued jobs, and may have 1" in refused.problem(429)
            assert refused.headers["retry-after"] == "60"
            assert server.call("GET", f"/v1/jobs/{first}").json["state"] == "cancelled"

"""The API's important paths over real HTTP, on each database."""

import io
import json
import subprocess
import sys
import tarfile
import threading

import pytest
from api_server import JOB, MIXTRAL, NEVER, WHOLE, eventually, serving, work
from attention_cases import fill
from databases import both_databases
from job_submitter import go_on, submitting

from api.paging import cursor_at
from api.settings import ApiSettings
from tuner.families.fused_moe.problem import BATCH_SIZES, Gemm
from tuner.jobs.job import Job, JobFilter, JobState
from tuner.problems.points import Config, Point
from tuner.problems.registry import parse_problem
from tuner.problems.results import Compiled, Entry, Incumbent, Status
from tuner.store.jobs import JobStore
from tuner.store.leases import Leases
from tuner.store.results import ResultStore
from workers.settings import Settings


class Announced(list[Job]):
    """Who was woken."""

    def announce(self, job: Job) -> None:
        self.append(job)


@pytest.fixture
def announced():
    return Announced()


@pytest.fixture
def server(store_url, announced):
    with serving(ApiSettings(Settings(store_url), no_auth=True), announced) as running:
        yield running


@pytest.fixture
def leases(server, store_url):
    with Leases.open(store_url) as opened:
        yield opened


def events_of(text: bytes) -> list[dict[str, object]]:
    blocks = [block for block in text.decode().split("\n\n") if "data: " in block]
    fields = [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]
    return [{**one, "data": json.loads(one["data"])} for one in fields]


class TestSubmit:
    def test_a_job_is_accepted_stored_and_announced(self, server, announced, leases):
        answer = server.call("POST", "/v1/jobs", JOB)
        assert (answer.status, answer.headers["retry-after"]) == (202, "5")
        job = answer.json
        assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
        assert (job["state"], job["client"], job["created"]) == ("queued", "local", True)
        assert job["request"]["device"] == "NVIDIA_L40S"
        assert job["request"]["problem"].startswith("fused_moe:E=257,N=64,K=7168,top_k=9")
        assert "fuses the shared experts" in job["notes"][0]
        assert "override with fuse_shared=false" in job["notes"][0]
        assert server.call("GET", answer.headers["location"]).json["id"] == job["id"]
        assert JobStore(leases.database).get(job["id"]).state is JobState.QUEUED
        eventually(lambda: [one.id for one in announced] == [job["id"]])

    def test_a_model_is_a_problem_a_warning_or_a_config_json_too(self, server):
        problem = "fused_moe:E=8,N=64,K=128,top_k=2,dtype=bfloat16"
        warning = (
            "Using default MoE kernel config. Config file not found at "
            "/x/E=8,N=1792,device_name=NVIDIA_L40S.json"
        )
        given = [
            *((problem, {}), (MIXTRAL, {"tp": 8}), ("mixtral-8x7b", {"tp": 8})),
            (warning, {"hidden_size": 4096, "top_k": 2}),
        ]
        jobs = [
            server.call("POST", "/v1/jobs", {"model": model, "device": "L40S", **more})
            for model, more in given
        ]
        assert [job.status for job in jobs] == [202] * 4
        assert jobs[0].json["request"]["problem"] == problem
        mixtral = "fused_moe:E=8,N=1792,K=4096,top_k=2,dtype=bfloat16"
        assert [job.json["request"]["problem"] for job in jobs[1:]] == [mixtral] * 3
        assert jobs[2].json["id"] == jobs[1].json["id"]  # one problem, one job
        # A line names no model, so what runs without this program is judged by the GPU alone.
        assert jobs[3].json["id"] != jobs[1].json["id"]

    def test_the_same_key_and_body_is_the_same_job(self, server):
        headers = {"Idempotency-Key": "a-1"}
        first = server.call("POST", "/v1/jobs", JOB, headers)
        spaced = json.dumps(dict(reversed(JOB.items())), indent=4).encode()
        again = server.call("POST", "/v1/jobs", spaced, headers)
        assert (again.status, again.json["id"]) == (202, first.json["id"])
        assert (again.headers["idempotent-replayed"], again.json["created"]) == ("true", False)
        other = server.call("POST", "/v1/jobs", {**JOB, "seed": 1}, headers)
        assert "used before with another body" in other.problem(422)
        assert len(server.call("GET", "/v1/jobs").json["jobs"]) == 1

    @both_databases
    def test_a_key_that_another_process_is_at_work_on_is_a_conflict(self, server, store_url):
        with submitting(store_url, "b-1") as other:
            answer = server.call("POST", "/v1/jobs", JOB, {"Idempotency-Key": "b-1"})
            assert "is being worked on" in answer.problem(409)
            assert answer.json["type"].endswith(":idempotency-key-in-use")
            assert answer.headers["retry-after"] == "1"
            go_on(other)
        said = server.call("POST", "/v1/jobs", JOB, {"Idempotency-Key": "b-1"}).problem(422)
        assert "used before with another body" in said

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"device": "Voodoo 2"}, "GET /v1/devices lists the known GPUs"),
            ({"model": "zzzzzzzz"}, "GET /v1/models lists the presets"),
            ({"dtype": "int8_w8a9"}, "did you mean 'int8_w8a8'?"),
            ({"gemms": ["upp"]}, "gemms/0: Input should be 'up' or 'down'; did you mean 'up'?"),
            ({"tp": 3}, "the nearest that works is tp="),
            ({"tp": "8"}, "tp: should be a number"),
            ({"tp": True}, "tp: should be a number"),
            (
                {
                    **{"tp": 1, "dtype": None},
                    "model": "fused_moe:E=999999999,N=999999999,K=128,top_k=1,dtype=bfloat16",
                },
                "GiB, and the card has 48 GiB",
            ),
            ({"seed": 1 << 53}, "seed: Input should be less than"),
            ({"seed": int("9" * 300)}, "seed: "),
            ({"batch_sizes": []}, "batch_sizes: List should have at least 1 item"),
            ({"model": {"architectures": ["LlamaForCausalLM"]}}, "not a mixture-of-experts model"),
            ({"measure": "replay:h200.csv"}, "TUNER_RECORDINGS names no folder"),
        ],
    )
    def test_a_mistake_is_named_with_what_is_nearest(self, untouched, change, said):
        assert said in untouched.call("POST", "/v1/jobs", {**JOB, **change}).problem(422)

    def test_a_mistake_s_pointer_leads_to_it(self, untouched):
        body = {
            **{"model": ["a"], "workload": [{"new_tokens": 1}, {"batch_size": "x"}]},
            **{"batch_sizes": [1, 0], "block_shape": [128]},
        }
        answer = untouched.call("POST", "/v1/jobs", body)
        assert answer.problem(422)
        pointers = {mistake["pointer"] for mistake in answer.json["errors"]}
        assert pointers == {
            *("/model", "/device", "/block_shape/1", "/batch_sizes/1"),
            *("/workload", "/workload/0/batch_size", "/workload/1/batch_size"),
        }

    def test_a_mistake_is_named_once(self, untouched):
        headers = {"Last-Event-ID": "99999999999"}
        answer = untouched.call("GET", f"/v1/jobs/{NEVER}/events", headers=headers)
        assert answer.problem(422) == "last-event-id: Input should be less than 2147483648"


class TestPaths:
    @pytest.mark.parametrize(
        ("method", "path", "status", "said"),
        [
            ("GET", "/v1/job", 404, "there is nothing at '/v1/job'; did you mean '/v1/jobs'?"),
            ("GET", "/redoc", 404, "did you mean '/docs'?"),
            ("GET", "/zzzzzzzzzzzzzzzz", 404, "GET /openapi.json lists the paths"),
            ("GET", f"/v1/jobs/{NEVER}/cancel", 405, "GET does nothing here: use POST"),
            ("GET", "/v1/exports/L40S.tar?engin=x", 422, "did you mean 'engine'?"),
            ("GET", "/v1/exports/L41S.tar", 404, "did you mean 'L40S'?"),
        ],
    )
    def test_what_is_not_there_is_named_with_what_is_nearest(
        self, untouched, method, path, status, said
    ):
        assert said in untouched.call(method, path).problem(status)


class TestCancel:
    def test_a_queued_job_ends_and_a_running_one_is_asked_to(self, server, leases):
        running, queued = server.submit(seed=1)["id"], server.submit(seed=2)["id"]
        work(leases, finish=False)
        ended = server.call("POST", f"/v1/jobs/{queued}/cancel")
        assert (ended.status, ended.json["state"]) == (200, "cancelled")
        asked = server.call("POST", f"/v1/jobs/{running}/cancel")
        assert (asked.status, asked.json["cancel_requested"]) == (202, True)
        assert server.call("POST", f"/v1/jobs/{queued}/cancel").json == ended.json

    def test_a_job_that_was_ended_as_asked_is_not_asked_again(self, server, leases):
        path = f"/v1/jobs/{server.submit()['id']}/cancel"
        lease = leases.claim([JobFilter(needs_gpu=True), JobFilter(needs_gpu=False)], "worker")
        assert server.call("POST", path).status == 202
        leases.cancelled(lease)
        ended = server.call("POST", path)
        assert (ended.status, ended.json["state"]) == (200, "cancelled")


class TestEvents:
    def test_a_job_is_followed_to_its_end(self, server, leases):
        job_id = server.submit()["id"]
        answers = []
        path = f"/v1/jobs/{job_id}/events"
        follower = threading.Thread(target=lambda: answers.append(server.call("GET", path)))
        follower.start()
        eventually(lambda: server.app.state.api.streams.open == 1)
        work(leases)
        follower.join(30)
        (answer,) = answers
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = events_of(answer.body)
        assert [one["event"] for one in events] == [
            "submitted", "waiting", "leased", "running", "trials", "done",
        ]  # fmt: skip
        assert [one["id"] for one in events] == ["1", "2", "3", "4", "5", "6"]
        posted_at = server.call("GET", f"/v1/jobs/{job_id}").json["created_at"]
        assert events[0]["data"]["at"] == posted_at and posted_at.endswith("Z")
        assert events[4]["data"]["data"]["new"] == 100
        eventually(lambda: server.app.state.api.streams.open == 0)

    def test_a_broken_stream_goes_on_after_the_last_event(self, server, leases):
        path = f"/v1/jobs/{server.submit()['id']}/events"
        work(leases)
        rest = server.call("GET", path, headers={"Last-Event-ID": "4"})
        assert [one["id"] for one in events_of(rest.body)] == ["5", "6"]
        rest = server.call("GET", f"{path}?after=4")  # from a client that cannot send the header
        assert [one["id"] for one in events_of(rest.body)] == ["5", "6"]
        rest = server.call("GET", f"{path}?after=2", headers={"Last-Event-ID": "4"})  # its second
        assert [one["id"] for one in events_of(rest.body)] == ["5", "6"]
        lost = server.call("GET", path, headers={"Last-Event-ID": "77"})  # the store was set back
        assert [one["id"] for one in events_of(lost.body)] == ["1", "2", "3", "4", "5", "6"]
        after_all = server.call("GET", path, headers={"Last-Event-ID": "6"})
        assert (after_all.status, after_all.body) == (204, b"")
        odd = server.call("GET", path, headers={"Last-Event-ID": "x"})
        assert "last-event-id" in odd.problem(422)


class TestResults:
    def test_winners_and_trials_of_a_job(self, server, leases):
        job_id = server.submit()["id"]
        assert server.call("GET", f"/v1/jobs/{job_id}/winners").json["winners"] == []
        work(leases)
        (winner,) = server.call("GET", f"/v1/jobs/{job_id}/winners").json["winners"]
        assert (winner["batch_size"], winner["gemm"], winner["status"]) == (1, "up", "ok")
        found, after = [], ""
        while after is not None:
            page = server.call("GET", f"/v1/jobs/{job_id}/trials?limit=30{after}").json
            found += [(one["gemm"], one["config"]["num_stages"]) for one in page["trials"]]
            after = page["next"] and f"&after={page['next']}"
        assert len(found) == len(set(found)) == 100
        assert found[0][0] == "down" and found[-1][0] == "up"

    @pytest.mark.parametrize(
        "odd", [[1 << 31, "k"], [True, "k"], [-1, "k"], [1, "\0"], [1, "\ud800"]]
    )
    def test_a_made_up_place_among_trials_is_refused(self, server, leases, odd):
        size, key = odd
        job_id = server.submit()["id"]
        work(leases)
        after = cursor_at(["up", size, 0, 0, key, "triton"])
        path = f"/v1/jobs/{job_id}/trials?after={after}"
        assert "take `next` of the page before" in server.call("GET", path).problem(422)

    def test_an_export_is_the_same_tar_each_time(self, server, leases):
        nothing = server.call("GET", "/v1/exports/L40S.tar").problem(409)
        assert "no winners for NVIDIA_L40S" in nothing
        assert nothing.endswith("post a job for the device NVIDIA_L40S first")
        server.submit()
        work(leases, entries=WHOLE)
        first, again = (server.call("GET", "/v1/exports/L40S.tar") for _ in range(2))
        assert (first.status, first.body) == (200, again.body)
        with tarfile.open(fileobj=io.BytesIO(first.body)) as tar:
            members = tar.getmembers()
        folder = "NVIDIA_L40S-sglang-0.5.16"
        file = "E=256,N=64,device_name=NVIDIA_L40S,dtype=int8_w8a8,per_channel_quant=True.json"
        names = {member.name for member in members}
        assert f"{folder}/configs/triton_3_6_0/{file}" in names
        assert f"{folder}/provenance/triton_3_6_0/{file}" in names
        assert len(names) > 300  # the engine's own beside it
        assert {(m.uid, m.gid, m.uname, m.mode, m.mtime) for m in members} == {
            (0, 0, "", 0o644, 315_532_800)
        }
        tag = {"If-None-Match": first.headers["etag"]}
        assert server.call("GET", "/v1/exports/L40S.tar", headers=tag).status == 304

    def test_an_export_of_one_problem_where_two_ask_for_a_file(self, server, store_url):
        spec = "fused_moe:E=256,N=128,K={},top_k=8,dtype=fp8_w8a8,block_shape=128x128"
        twins = [parse_problem(spec.format(hidden)) for hidden in (7168, 6144)]
        keys = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M")
        config = Config({**dict.fromkeys(keys, 32), "num_warps": 4, "num_stages": 3})
        own = {"default": Incumbent(config.replace(num_stages=2), Status.OK, 12.0)}
        entries = [
            Entry(Point(n, gemm), config, Status.OK, 9.0, Compiled(Status.OK), own, "")
            for n in BATCH_SIZES
            for gemm in Gemm
        ]
        path = "/v1/exports/H200.tar?engine=sglang==0.5.16"
        with ResultStore.open(store_url) as store:
            for problem in twins:
                fill(store, problem, entries)
            refused = server.call("GET", path).problem(409)
            assert "left out (2 problems ask for E=256,N=128,device_name=NVIDIA_H200" in refused
            fill(store, parse_problem(spec.replace("N=128", "N=256").format(7168)), entries)
        whole = server.call("GET", path)
        assert (whole.status, whole.headers["x-tuner-left-out"]) == (200, "2")
        with tarfile.open(fileobj=io.BytesIO(whole.body)) as tar:
            names = [one.name for one in tar.getmembers() if "/provenance/" in one.name]
        assert sorted(name.rpartition("/")[2].partition(",d")[0] for name in names) == [
            "E=256,N=256",
            "E=256,N=256",
            "left_out",
        ]
        found = server.call("GET", f"{path}&problem={twins[1].spec()}")
        assert found.status == 200
        with tarfile.open(fileobj=io.BytesIO(found.body)) as tar:
            (name,) = (
                one.name
                for one in tar.getmembers()
                if "/provenance/" in one.name and not one.name.endswith("_down.json")
            )
            assert json.loads(tar.extractfile(name).read())["problem"] == twins[1].spec()
        server.call("GET", f"{path}&problem=fused_moe:E=1").problem(422)


def test_the_tables_and_the_counters(server):
    devices = server.call("GET", "/v1/devices").json["devices"]
    assert "NVIDIA_L40S" in {device["name"] for device in devices}
    models = server.call("GET", "/v1/models").json["models"]
    has = {model["name"]: (model["E"], model["families"]) for model in models}
    assert has["deepseek-r1"][0] == 256 and "fused_moe" in has["deepseek-r1"][1]
    assert has["qwen3-32b"][0] == 0 and "fused_moe" not in has["qwen3-32b"][1]
    server.submit()
    metrics = server.call("GET", "/metrics").body.decode()
    assert 'tuner_jobs_unfinished{device="NVIDIA_L40S",state="queued"} 1.0' in metrics
    assert 'tuner_jobs_submitted_total{created="true",device="NVIDIA_L40S"} 1.0' in metrics
    assert 'route="/v1/jobs",status="202"} 1.0' in metrics
    assert server.call("GET", "/v1/nights/last").problem(404) == "there was no night yet"


def test_a_path_names_its_methods(server):
    answer = server.call("PUT", "/v1/jobs", {})
    assert answer.problem(405) == "PUT does nothing here: use GET, POST"
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "OPTIONS", "POST"}
    asked = server.call("OPTIONS", "/v1/jobs")
    assert (asked.status, asked.body) == (204, b"")
    assert asked.headers["allow"] == answer.headers["allow"]
    server.call("OPTIONS", "/v1/job").problem(404)


@pytest.mark.parametrize(
    ("path", "methods"),
    [("/", {"GET"}), ("/login", {"GET", "POST"}), ("/openapi.json", {"GET"}), ("/docs", {"GET"})],
)
def test_so_does_a_page(server, path, methods):
    answer = server.call("DELETE", path)
    assert answer.status == 405
    assert set(answer.headers["allow"].split(", ")) == {*methods, "HEAD", "OPTIONS"}


def test_a_head_is_answered_as_a_get_is_without_the_body(server):
    job_id = server.submit()["id"]
    for path in (*("/healthz", "/readyz", "/metrics", "/v1/jobs", "/v1/devices", "/v1/coverage"),):
        got, head = server.call("GET", path), server.call("HEAD", path)
        assert (head.status, head.body) == (got.status, b"") == (200, b"")
        assert head.headers["content-type"] == got.headers["content-type"]
        if path not in ("/metrics", "/v1/jobs"):  # which count this request, or its time
            assert head.headers["content-length"] == got.headers["content-length"]
    stream = server.call("HEAD", f"/v1/jobs/{job_id}/events")
    assert (stream.status, stream.body) == (200, b"")
    assert stream.headers["content-type"].startswith("text/event-stream")
    eventually(lambda: server.app.state.api.streams.open == 0)
    assert server.call("HEAD", f"/v1/jobs/{NEVER}").status == 404
    assert server.call("HEAD", f"/v1/jobs/{job_id}/cancel").status == 405
    assert server.call("GET", f"/v1/jobs/{job_id}").json["state"] == "queued"
    metrics = server.call("GET", "/metrics").body.decode()
    assert 'method="HEAD",route="/v1/jobs",status="200"} 1.0' in metrics


def test_the_api_imports_nothing_heavy(sqlite_url):
    code = "import sys, api.serve, tuner.store.database as s; s.Database.open(sys.argv[1]).close()"
    command = [sys.executable, "-c", f"{code}; print(*sys.modules)", sqlite_url]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    heavy = {"torch", "triton", "optuna", "numpy", "celery", "workers.app", "alembic"}
    assert heavy & set(run.stdout.split()) == set()

"""Attention through the queue: posted, run by a worker's own code, and shown by the API."""

import pytest
from api_server import serving

from api.settings import ApiSettings
from tuner.bindings.sglang.attention.binding import CHOICES
from tuner.devices.table import find_device
from tuner.families.attention.problem import Attention, AttentionPart, parse_attention
from tuner.families.attention.space import attention_space
from tuner.jobs.attempts import AttemptOutcome
from tuner.jobs.job import JobFilter, JobRequest
from tuner.measure.recording import write_trials
from tuner.problems.points import Candidate, Point
from tuner.problems.results import Compiled, Measurement, Status, Trial
from tuner.store.database import Database
from tuner.store.leases import Leases
from tuner.store.nights import NightStore
from workers.coverage import WatchState
from workers.nightly import work_of
from workers.run_job import do_job
from workers.settings import Settings
from workers.watches import Watch, watch_list_of

SPEC = "decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16,kv_splits=8"
PROBLEM: Attention = parse_attention(SPEC)
POINTS = [{"batch_size": size, "cached_tokens": 4096} for size in (1, 64)]
JOB = {"model": SPEC, "device": "H200", "measure": "replay:h200_decode.csv", "workload": POINTS}
PARTS = (AttentionPart.DECODE, AttentionPart.REDUCE)


@pytest.fixture
def settings(store_url, tmp_path):
    """With a recording in which more warps are always faster."""
    device = find_device("H200")
    trials = [
        Trial(
            Candidate(Point(size, part, 1, 4096), config),
            Compiled(Status.OK, shared_bytes=1024),
            Measurement(Status.OK, 100.0 / config["num_warps"] + size),
        )
        for size in (1, 64)
        for part in PARTS
        for config in attention_space(PROBLEM, device, part, CHOICES[part]).configs()
    ]
    write_trials(tmp_path / "h200_decode.csv", PROBLEM, trials)
    return Settings(store_url, recordings=tmp_path)


@pytest.fixture
def server(settings):
    with serving(ApiSettings(settings, no_auth=True)) as running:
        yield running


@pytest.fixture
def leases(server, settings):
    with Leases.open(settings.database_url) as opened:
        yield opened


def run_next(leases: Leases, settings: Settings) -> None:
    lease = leases.claim([JobFilter(needs_gpu=False)], "test")
    assert lease is not None
    result = do_job(lease, leases, settings)
    assert result.outcome is AttemptOutcome.DONE, result.reason


def test_a_job_is_run_and_its_results_are_shown(server, leases, settings):
    answer = server.call("POST", "/v1/jobs", JOB)
    assert answer.status == 202, answer.body
    job = answer.json
    assert job["request"]["problem"] == SPEC
    assert job["request"]["workload"] == [{**p, "new_tokens": 1, "weight": 1.0} for p in POINTS]
    assert job["request"].keys().isdisjoint({"gemms", "batch_sizes"})
    run_next(leases, settings)
    assert server.call("GET", f"/v1/jobs/{job['id']}").json["state"] == "done"

    winners = server.call("GET", f"/v1/jobs/{job['id']}/winners").json["winners"]
    assert [(w["batch_size"], w["new_tokens"], w["cached_tokens"], w["part"]) for w in winners] == [
        (size, 1, 4096, part.value) for size in (1, 64) for part in PARTS
    ]
    assert {w["config"]["num_warps"] for w in winners} == {8}
    assert {w["median_us"] - w["batch_size"] for w in winners} == {12.5}
    assert all("gemm" not in w and w["incumbents"]["default"] for w in winners)

    progress = server.call("GET", f"/v1/jobs/{job['id']}/progress").json
    own = {w["part"] + str(w["batch_size"]): w["incumbents"]["default"] for w in winners}
    assert {one["part"] + str(one["batch_size"]) for one in progress["incumbents"]} == set(own)
    for one in progress["incumbents"]:
        told = one["times_us"]["default"]
        assert told == own[one["part"] + str(one["batch_size"])]["median_us"]
    assert sum(progress["trials"].values()) <= progress["to_try"] and progress["left_s"] is None

    tried, after = [], ""
    while after is not None:
        page = server.call("GET", f"/v1/jobs/{job['id']}/trials?limit=7{after}").json
        tried += [
            (t["part"], t["batch_size"], t["cached_tokens"], str(t["config"]))
            for t in page["trials"]
        ]
        after = page["next"] and f"&after={page['next']}"
    assert len(tried) == len(set(tried)) > 40
    assert {at[:2] for at in tried} == {(part.value, size) for part in PARTS for size in (1, 64)}


@pytest.mark.parametrize("workload", [None, "offline"])
def test_a_use_is_taken_by_name(server, workload):
    job = server.submit(**{**JOB, "tp": 1, "dtype": None, "measure": "gpu", "workload": workload})
    assert job["request"]["workload"] == workload


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gemms": ["up"]}, "gemms is for a fused-MoE layer: leave it out"),
        ({"wide": False}, "wide is for a fused-MoE layer: leave it out"),
        ({"tp": 8}, "tp is for a model"),
        ({"dtype": "fp8_w8a8"}, "dtype is for a model"),
        (
            {"batch_sizes": [1]},
            "batch_sizes is for a fused-MoE layer and quantised dense GEMMs: leave it out",
        ),
        ({"workload": "offlin"}, "'offline'"),
        (
            {"measure": "predict"},
            'of attention are not predicted: measure them on a GPU, with "measure": "gpu"',
        ),
        ({"workload": []}, "at least 1 item"),
        ({"workload": [{"batch_size": 0}]}, "greater than or equal to 1"),
        ({"workload": [{"batch_size": 4, "new_tokens": 9}]}, "has no point of decode"),
        ({"workload": [*POINTS, POINTS[0]]}, "point 3 is point 1 again"),
        ({"workload": [{"batch_size": 4, "weigth": 2}]}, "did you mean 'weight'?"),
        ({"model": SPEC.replace("splits", "split")}, "did you mean 'kv_splits'?"),
        (
            {"model": "fused_moe:E=8,N=64,K=128,top_k=2,dtype=bfloat16"},
            "workload is for attention: leave it out",
        ),
    ],
)
def test_a_mistake_is_named(untouched, change, said):
    answer = untouched.call("POST", "/v1/jobs", {**JOB, "measure": "gpu", **change})
    assert said in answer.problem(422)


def test_every_field_that_does_not_apply_is_pointed_at(untouched):
    wrong = {**JOB, "measure": "gpu", "ep": 8, "top_k": 2, "gemms": ["up"]}
    answer = untouched.call("POST", "/v1/jobs", wrong)
    assert answer.status == 422
    assert answer.json["type"] == "urn:engine-tuner:error:options-refused"
    assert [one["pointer"] for one in answer.json["errors"]] == ["/ep", "/top_k", "/gemms"]
    predicted = untouched.call("POST", "/v1/jobs", {**JOB, "measure": "predict"})
    assert [one["pointer"] for one in predicted.json["errors"]] == ["/measure"]


def test_a_watched_problem_is_judged_at_its_own_points(server, leases, settings):
    with Database.open(settings.database_url) as store:
        watch = Watch((SPEC,), ("H200",), measure="replay:h200_decode.csv")
        nights = NightStore(store)
        nights.add_watch(watch.as_json(), watch.key, "test")
        on_gpu = Watch((SPEC,), ("H200",))
        nights.add_watch(on_gpu.as_json(), on_gpu.key, "test")

        def standings() -> list[WatchState]:
            judged = work_of(watch_list_of(settings, nights), store).watched
            assert all(isinstance(one.request, JobRequest) for one in judged)
            return [one.standing for one in judged]

        assert standings() == [WatchState.MISSING] * 2
        server.submit(**{**JOB, "tp": 1, "dtype": None})
        run_next(leases, settings)
        assert standings() == [WatchState.TUNED, WatchState.MISSING]

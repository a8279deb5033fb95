"""A model's day: one submission or one watch, a worker's own code, and stored winners."""

from __future__ import annotations

import shutil
from datetime import timedelta

import pytest
from api_server import Server, serving
from cases import ROOT

from api.settings import ApiSettings
from tuner.jobs.attempts import AttemptOutcome
from tuner.jobs.job import JobFilter
from tuner.store.database import Database, utc_now
from tuner.store.leases import Leases
from tuner.store.results import ResultStore
from workers.nightly import do_round
from workers.queue import Announcer
from workers.run_job import do_job
from workers.settings import Settings

RECORDINGS = ROOT / "tests" / "data" / "recordings"
SGLANG = "sglang==0.5.16"
TRITON = (
    "--attention-backend triton --linear-attn-backend triton --fp8-gemm-backend triton "
    "--moe-runner-backend triton --disable-shared-experts-fusion"
)
# Of each model: its ranks, the families that servers read files for, and real recordings of an
# H100 with the problem of the model that each is of.
MODELS = {
    "qwen3-32b-fp8": (
        2,
        {"attention", "dense_gemm"},
        {"h100_N5120_K4096_fp8w8a8_b128.csv.gz": "block_gemm:N=5120,K=4096"},
    ),
    "deepseek-r1": (
        8,
        {"fused_moe", "attention", "dense_gemm"},
        {
            "h100_N2112_K7168_fp8w8a8_b128.csv.gz": "block_gemm:N=2112,K=7168",
            "h100_N7168_K2048_fp8w8a8_b128.csv.gz": "block_gemm:N=7168,K=2048",
        },
    ),
    "qwen3-next-80b-a3b": (
        8,
        {"fused_moe", "attention", "gated_delta"},
        {"h100_E512_N64_K2048_top10_bfloat16.csv.gz": "fused_moe:E=512,N=64,K=2048"},
    ),
}


@pytest.fixture
def settings(store_url, tmp_path):
    shutil.copytree(RECORDINGS, tmp_path / "recordings")
    return Settings(store_url, recordings=tmp_path / "recordings")


@pytest.fixture
def server(settings):
    with serving(ApiSettings(settings, no_auth=True)) as running:
        yield running


def run_all(settings: Settings) -> int:
    """Do the jobs that need no GPU, as a worker does them; returns how many there were."""
    done = 0
    with Leases.open(settings.database_url) as leases:
        while lease := leases.claim([JobFilter(needs_gpu=False)], "test"):
            result = do_job(lease, leases, settings)
            assert result.outcome is AttemptOutcome.DONE, result.reason
            done += 1
    return done


def stored(settings: Settings, device: str) -> set[str]:
    with Database.open(settings.database_url) as store:
        winners = ResultStore(store).winners(device=device, engine="sglang")
    return {one.problem.spec() for one in winners}


def families_queued(server: Server) -> set[str]:
    listed = server.call("GET", "/v1/jobs?limit=1000").json["jobs"]
    kinds = {one["request"]["problem"].partition(":")[0] for one in listed}
    models = server.call("GET", "/v1/models").json["models"]
    known = {"block_gemm": "dense_gemm", "channel_gemm": "dense_gemm"}
    assert models
    return {known.get(kind, "attention" if "attention" in kind else kind) for kind in kinds}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_posted_and_what_is_recorded_of_it_ends_in_winners(server, settings, name):
    tp, families, recordings = MODELS[name]
    body = {"model": name, "device": "H100", "tp": tp, "engine": SGLANG, "server_args": TRITON}
    posted = server.call("POST", "/v1/jobs:model", body)
    assert posted.status == 200, posted.body
    assert families_queued(server) == families
    problems = [one["request"]["problem"] for one in posted.json["jobs"]]
    for recording, prefix in recordings.items():
        (problem,) = [one for one in problems if one.startswith(prefix + ",")]
        replay = {**body, "measure": f"replay:{recording}", "problems": [problem]}
        answer = server.call("POST", "/v1/jobs:model", {**replay, "effort": "quick"})
        assert answer.status == 200, answer.body
        assert run_all(settings) == 1
        assert problem in stored(settings, "NVIDIA_H100_80GB_HBM3")


@pytest.mark.parametrize("name", MODELS)
def test_a_watch_of_a_model_queues_every_family(server, settings, name):
    tp, families, _ = MODELS[name]
    watch = {"models": [name], "devices": ["H100"], "tp": [tp], "engine": SGLANG}
    added = server.call("POST", "/v1/watches", {**watch, "server_args": TRITON})
    assert added.status == 201, added.body
    night = server.call("POST", "/v1/nights").json
    assert families_queued(server) == families
    (model,) = night["models"]
    assert (model["model"], model["new"]) == (name, len(night["submitted"]))
    rows = server.call("GET", "/v1/coverage/watched?limit=100").json["watched"]
    assert {row["family"] for row in rows if row["standing"] == "missing"} == families
    one = sorted(families)[0]
    some = server.call("GET", f"/v1/coverage/watched?limit=100&family={one}&model={name}").json
    assert {row["family"] for row in some["watched"]} == {one}
    assert server.call("GET", "/v1/coverage/watched?model=glm-4.5").json["watched"] == []
    server.app.state.api.matrix.forget()  # or what it knows may be a second old
    cells = server.call("GET", "/v1/coverage/matrix?state=missing&limit=100").json["rows"]
    assert {row["family"] for row in cells} == families


@pytest.mark.slow
def test_predictions_end_in_winners_and_are_not_made_again(server, settings):
    watch = {"models": ["qwen3-8b-fp8"], "devices": ["L40S"], "tp": [8], "engine": SGLANG}
    watch |= {"measure": "predict", "effort": "quick", "batch_sizes": [1]}
    assert server.call("POST", "/v1/watches", watch).status == 201
    first = server.call("POST", "/v1/nights").json
    (model,) = first["models"]
    assert model["new"] == len(first["submitted"]) > 0
    left = {one["what"].partition(":")[0] for one in model["left_alone"]}
    assert left == {"extend_attention", "decode_attention"}
    assert run_all(settings) == model["new"]
    assert len(stored(settings, "NVIDIA_L40S")) == model["new"]
    last = server.call("GET", "/v1/nights/last").json
    assert {one["state"] for one in last["outcomes"]} == {"done"}
    assert last["summary"]["models"][0]["faster"] == sum(one["faster"] for one in last["outcomes"])
    with Database.open(settings.database_url) as store:
        tomorrow = utc_now().date() + timedelta(days=1)
        second = do_round(settings, store, Announcer(settings), today=tomorrow)
    assert (second["submitted"], second["waiting"], second["revalidated"]) == ([], [], [])
    assert second["models"][0]["up_to_date"] == model["new"]

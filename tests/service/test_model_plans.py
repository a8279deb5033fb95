"""A model is one plan over HTTP: what GET /v1/plan answers, and POST /v1/jobs:model queues."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from api_server import Server
from cases import ROOT
from typer.testing import CliRunner

from tuner.cli.commands import app
from tuner.store.shelf import SHIPPED

SGLANG = "sglang==0.5.16"
# The families of which each model has problems on an L40S, where servers read files for all.
MODELS = {
    "qwen3-32b-fp8": {"attention", "dense_gemm"},
    "deepseek-r1": {"fused_moe", "attention", "dense_gemm"},
    "qwen3-next-80b-a3b": {"fused_moe", "attention", "gated_delta"},
}
TRITON = "--attention-backend triton --linear-attn-backend triton --fp8-gemm-backend triton"


def asked(model: object, **fields: object) -> dict[str, Any]:
    return {"model": model, "device": "L40S", "tp": 8, "engine": SGLANG, **fields}


def post(server: Server, body: Mapping[str, Any], key: str | None = None) -> dict[str, Any]:
    answer = server.call("POST", "/v1/jobs:model", body, {"Idempotency-Key": key} if key else {})
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


def plan(server: Server, **query: object) -> dict[str, Any]:
    text = "&".join(f"{name}={value}" for name, value in query.items())
    answer = server.call("GET", f"/v1/plan?{text}".replace(" ", "%20"))
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


def queued(server: Server) -> list[str]:
    listed = server.call("GET", "/v1/jobs?limit=1000").json["jobs"]
    return sorted(one["request"]["problem"] for one in listed)


@pytest.mark.parametrize("model", MODELS)
def test_a_job_is_queued_for_each_problem_of_the_plan(server, model):
    body = asked(model, tp=4, server_args=TRITON)
    found = plan(server, **body)
    to_tune = sorted(one["problem"] for one in found["problems"] if one["tune"])
    posted = post(server, body)
    assert {one["family"] for one in found["problems"] if one["tune"]} == MODELS[model]
    assert sorted(one["request"]["problem"] for one in posted["jobs"]) == to_tune == queued(server)
    assert {one["request"]["model"] for one in posted["jobs"]} == {model}
    assert all(one["gpu_s"] > 0 for one in found["problems"])
    assert all(one["estimated_gpu_s"] > 0 for one in posted["jobs"])


def test_a_plan_of_an_unknown_model_is_refused(server):
    answer = server.call("GET", "/v1/plan?device=H200&model=qwen3-33b")
    assert "no preset is called 'qwen3-33b'" in answer.problem(422)
    assert [one["pointer"] for one in answer.json["errors"]] == ["model"]


def test_the_plan_is_the_command_s(server, store_url, monkeypatch, subtests):
    monkeypatch.setenv("TUNER_DATABASE_URL", store_url)
    for model, device in (("deepseek-r1", "H200"), ("qwen3-32b", "H100"), ("gpt-oss-120b", "H20")):
        with subtests.test(model):
            words = ["plan", model, "--tp", "4", "--device", device, "--engine", SGLANG, "--json"]
            done = CliRunner().invoke(app, words)
            said = json.loads(done.stdout)
            found = plan(server, model=model, device=device, tp=4, engine=SGLANG)
            assert {name: found[name] for name in said} == said
            for left in found["left_out"]:
                assert f"left out {left['what']}: " in done.stderr


def test_the_plan_and_its_page_say_what_the_shelf_has(server, visitor, monkeypatch):
    monkeypatch.setenv("TUNER_SHELF", str(SHIPPED))
    body = {"model": "deepseek-r1", "device": "H100", "tp": 8, "engine": SGLANG}
    found = {one["problem"].partition(":")[0]: one for one in plan(server, **body)["problems"]}
    layer, attention = found["fused_moe"], found["extend_attention"]
    assert (layer["file"], layer["from_shelf"], layer["leave"]) == ("shelf", True, None)
    assert attention["leave"].startswith("leave extend_attention to FlashAttention 3")
    text = "&".join(f"{name}={value}" for name, value in body.items())
    page = visitor.open(f"/jobs/plan?{text}")
    assert "measured (shelf)" in page
    assert attention["leave"] in page


def test_what_no_server_reads_is_left_out_and_why_is_said(server):
    body = asked("qwen3-32b", device="H200", tp=4)
    posted = post(server, body)
    assert posted["jobs"] == [] == queued(server)
    assert {one["what"].partition(":")[0] for one in posted["left_out"]} >= {
        "decode_attention",
        "extend_attention",
    }
    assert all("runs FlashAttention 3" in one["why"] for one in posted["left_out"][-2:])
    named = post(server, {**body, "families": ["attention"]})
    assert len(named["jobs"]) == 2
    every = post(server, {**body, "families": "all"})
    assert {one["id"] for one in every["jobs"]} == {one["id"] for one in named["jobs"]}


def test_what_is_not_predicted_is_left_out_of_a_prediction(server):
    posted = post(server, asked("deepseek-r1", measure="predict"))
    kinds = {one["request"]["problem"].partition(":")[0] for one in posted["jobs"]}
    assert kinds == {"fused_moe", "block_gemm"}
    whys = {one["what"].partition(":")[0]: one["why"] for one in posted["left_out"]}
    assert "the times of attention are not predicted" in whys["decode_attention"]


def test_a_config_json_is_a_model_too(server):
    config = json.loads((ROOT / "tests/data/models/deepseek-r1/config.json").read_text())
    posted = post(server, asked(config, name="ours"))
    preset = post(server, asked("deepseek-r1"))
    assert {one["id"] for one in posted["jobs"]} == {one["id"] for one in preset["jobs"]}
    assert {one["request"]["model"] for one in posted["jobs"]} == {"ours"}


def test_only_the_problems_that_are_named(server):
    found = plan(server, model="deepseek-r1", device="H200", tp=8, engine=SGLANG)
    unread = next(one["problem"] for one in found["problems"] if not one["tune"])
    layer = found["problems"][0]["problem"]
    body = asked("deepseek-r1", device="H200", problems=[unread, layer])
    assert {one["request"]["problem"] for one in post(server, body)["jobs"]} == {unread, layer}
    other = {**body, "problems": ["fused_moe:E=8,N=64,K=128,top_k=2,dtype=bfloat16"]}
    refused = server.call("POST", "/v1/jobs:model", other).problem(422)
    assert "the model has no problem fused_moe:E=8" in refused


def test_one_idempotency_key_stands_for_all(server):
    body = asked("deepseek-r1")
    first = post(server, body, "one-day")
    for job in first["jobs"]:
        server.call("POST", f"/v1/jobs/{job['id']}/cancel")
    again = server.call("POST", "/v1/jobs:model", body, {"Idempotency-Key": "one-day"})
    assert again.headers["idempotent-replayed"] == "true"
    assert [one["id"] for one in again.json["jobs"]] == [one["id"] for one in first["jobs"]]
    other = {**body, "tp": 16}
    refused = server.call("POST", "/v1/jobs:model", other, {"Idempotency-Key": "one-day"})
    assert "was used before with another body" in refused.problem(422)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"families": ["fused_mo"]}, "did you mean 'fused_moe'?"),
        ({"families": "everything"}, "families"),
        ({"tp": 7}, "does not divide"),
        ({"server_args": "--a 'b"}, "cannot read the server's flags"),
        ({"server_args": "--tp 4"}, "the server's flags say 4"),
        ({"model": "deepseek-r11"}, "did you mean"),
        ({"device": "L40X"}, "did you mean 'L40'"),
        ({"measure": "replay:one.csv"}, "TUNER_RECORDINGS"),
        ({"model": {"model_type": "x"}}, "no architecture is named"),
    ],
)
def test_a_mistake_queues_nothing(untouched, fields, said):
    refused = untouched.call("POST", "/v1/jobs:model", {**asked("deepseek-r1"), **fields})
    assert said in refused.problem(422)


def test_an_option_of_no_family_of_the_model_is_refused(untouched):
    body = asked("qwen3-32b", ep=4)
    assert "ep is for a fused-MoE layer" in untouched.call("POST", "/v1/jobs:model", body).problem(
        422
    )


@pytest.mark.parametrize("text", ["0" * 2000, "/etc/passwd", "no-such-model", "moe:E=8"])
def test_a_plan_of_a_text_that_names_no_model_is_refused(untouched, text):
    refused = untouched.call("GET", f"/v1/plan?model={text}&device=L40S").problem(422)
    assert "no preset is called" in refused or "unknown kind of problem" in refused


def test_a_problem_has_a_plan_too(server):
    problem = "fused_moe:E=8,N=64,K=128,top_k=2,dtype=bfloat16"
    (one,) = plan(server, model=problem, device="L40S", engine=SGLANG)["problems"]
    assert (one["problem"], one["tune"], one["family"]) == (problem, True, "fused_moe")
    (job,) = post(server, {"model": problem, "device": "L40S", "engine": SGLANG})["jobs"]
    assert job["request"]["problem"] == problem


def test_a_full_queue_takes_none_of_a_model_s_jobs(server):
    server.app.state.api.settings = server.app.state.api.settings.__class__(
        **{**vars(server.app.state.api.settings), "queued": 3}
    )
    refused = server.call("POST", "/v1/jobs:model", asked("deepseek-r1"))
    assert refused.status == 429, refused.body
    assert queued(server) == []

"""`tuner profile` as people use it."""

import json
from pathlib import Path

import pytest
from commands import tuner as run
from profile_traces import CUBLAS, DECODE, EXTEND, MOE, REDUCE, TraceWriter


def write_trace(path: Path) -> Path:
    trace = TraceWriter()
    trace.step((EXTEND, 60.0), (CUBLAS, 40.0), mark="step[EXTEND bs=1 toks=512]")
    trace.step((DECODE, 350.0), (REDUCE, 5.0), (MOE, 40.0), mark="step[DECODE bs=8]", graph=True)
    return trace.write(path)


@pytest.fixture
def tuner(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNER_DATABASE_URL", f"sqlite:///{tmp_path}/tuner.db")
    return lambda *words, code=0: run("profile", *words, code=code)


@pytest.fixture
def trace(tmp_path):
    return write_trace(tmp_path / "a.trace.json.gz")


def test_a_table_and_json(tuner, trace):
    assert "attention, decode (Triton)" in tuner(trace).stdout
    found = json.loads(tuner(trace, "--json").stdout)
    assert [phase["phase"] for phase in found["phases"]] == ["decode", "prefill"]


def test_the_commands_worth_running_name_each_family_once_and_the_best_first(tuner, trace):
    words = ("--model", "deepseek-r1", "--tp", "8", "--problems")
    done = tuner(trace, *words)
    begin = "tuner tune deepseek-r1 --device NVIDIA_H100_80GB_HBM3 --tp 8"
    assert done.stdout.splitlines() == [f"{begin} --attention", begin]
    assert json.loads(tuner(trace, *words, "--json").stdout)["commands"][1] == begin


def test_the_commands_repeat_how_the_model_is_served(tuner, trace, tmp_path):
    log = tmp_path / "server.log"
    log.write_text("Decode batch, #running-req: 8, #token: 800, gen throughput (token/s): 40.0,")
    words = ("--model", "deepseek-r1", "--tp", "8", "--ep", "8", "--no-fuse-shared")
    done = tuner(trace, *words, "--engine", "sglang==0.5.16", "--log", log, "--problems")
    begin = "tuner tune deepseek-r1 --device NVIDIA_H100_80GB_HBM3 --tp 8 --engine sglang==0.5.16"
    assert done.stdout.splitlines() == [
        f"{begin} --workload {log} --attention",
        f"{begin} --workload {log} --ep 8 --no-fuse-shared",
    ]


def test_commands_for_vllm_name_it(tuner, tmp_path):
    trace = TraceWriter()
    trace.step((MOE, 40.0), mark="execute_context_0(0)_generation_8(8)", graph=True)
    path = trace.write(tmp_path / "vllm.trace.json")
    done = tuner(path, "--model", "qwen3-30b-a3b", "--problems")
    assert done.stdout.splitlines() == [
        "tuner tune qwen3-30b-a3b --device NVIDIA_H100_80GB_HBM3 --engine vllm"
    ]


def test_tuned_files_in_the_server_s_log_are_no_longer_worth_tuning(tuner, trace, tmp_path):
    log = tmp_path / "server.log"
    path = "/c/attention/triton_3_6_0/decode_attention,q_heads=32,kv_heads=4,Lq=128.json"
    log.write_text(f"[TP0] tuner attention: decode 32/4 128/128 bfloat16 from {path}\n")
    found = json.loads(tuner(trace, "--log", log, "--json").stdout)
    (row,) = [
        row
        for phase in found["phases"]
        for row in phase["families"]
        if row["family"] == "attention_decode"
    ]
    assert (row["basis"], row["saved"]) == ("in use", 0)


def test_vllm_s_attention_is_not_tuned(tuner, trace):
    found = json.loads(tuner(trace, "--engine", "vllm", "--json").stdout)
    assert list(found["worth"]) == ["fused_moe"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["none.json"], "cannot be read: No such file"),
        (["TRACE", "--problems"], "--problems prints commands for a model: add --model NAME"),
        (["TRACE", "--engine", "sgl"], "did you mean 'sglang'?"),
        (["TRACE", "--device", "H20O"], "did you mean"),
        (["TRACE", "--model", "no-such-model"], "no-such-model"),
    ],
)
def test_bad_input_names_the_next_step(tuner, trace, words, says):
    done = tuner(*[trace if word == "TRACE" else word for word in words], code=2)
    assert says in done.stderr
    assert done.stdout == ""


def test_a_gpu_that_the_trace_does_not_name_must_be_given(tuner, tmp_path):
    trace = TraceWriter(device="Somebody's GPU")
    trace.step((MOE, 40.0), mark="step[DECODE bs=8]")
    path = trace.write(tmp_path / "a.trace.json")
    tuner(path)
    refused = tuner(path, "--model", "qwen3-30b-a3b", code=2)
    assert "the trace's GPU is Somebody's GPU: add --device" in refused.stderr

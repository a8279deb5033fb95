"""A running server's URL stands for its model, its release and its flags."""

import json

import pytest
from commands import tuner
from running_servers import answering, sglang_server

TWO_WAYS = [
    pytest.param(
        version,
        {"model_path": "deepseek-ai/DeepSeek-R1", "tp_size": 16, "enable_dp_attention": False},
        ("deepseek-r1", "--tp", "16"),
        id=version,
    )
    for version in ("0.4.4", "0.5.2", "0.5.16", "0.5.23")
] + [
    pytest.param(
        "0.5.16",
        {
            "model_path": "Qwen/Qwen3-30B-A3B",
            "tp_size": 2,
            "ep_size": 2,
            "attention_backend": "triton",
            "moe_runner_backend": "triton",
            "quantization": "fp8",
        },
        (
            "qwen3-30b-a3b",
            "--server-args",
            "--tp-size 2 --ep-size 2 --attention-backend triton --moe-runner-backend triton "
            "--quantization fp8",
        ),
        id="flags",
    ),
    pytest.param(
        "0.5.16",
        {"model_path": "deepseek-v3", "tp_size": 8, "dp_size": 8, "enable_dp_attention": True},
        ("deepseek-v3", "--server-args", "--tp-size 8 --dp-size 8 --enable-dp-attention"),
        id="attention of other ranks",
    ),
    pytest.param(
        "0.5.23",
        {"model_path": "deepseek-v3", "tp_size": 8, "attn_dp_size": 8, "enable_dp_attention": True},
        ("deepseek-v3", "--server-args", "--tp-size 8 --attn-dp-size 8"),
        id="attention of other ranks in 0.5.23",
    ),
]


@pytest.mark.parametrize(("version", "values", "words"), TWO_WAYS)
def test_the_plan_of_a_server_is_the_plan_of_its_flags(version, values, words):
    with sglang_server(version, **values) as url:
        asked = tuner("plan", url, "--device", "H200", "--json")
    named = tuner("plan", *words, "--engine", f"sglang=={version}", "--device", "H200", "--json")
    assert json.loads(asked.stdout) == json.loads(named.stdout)
    assert json.loads(asked.stdout)["problems"]


def test_an_older_name_of_the_path_is_asked_too():
    with sglang_server("0.4.4", model_path="mixtral-8x7b", tp_size=2) as url:
        assert "E=8,N=7168" in tuner("plan", url, "--device", "L40S").stdout


def test_vllm_tells_its_release_and_its_model():
    answers = {
        "/version": (200, b'{"version": "0.33.0"}'),
        "/v1/models": (200, b'{"data": [{"id": "qwen", "root": "Qwen/Qwen3-30B-A3B"}]}'),
    }
    with answering(answers) as url:
        done = tuner("plan", url, "--device", "H100", "--tp", "2")
    assert "E=128,N=384" in done.stdout
    assert "vllm 0.33.0" in done.stdout
    assert f"{url} does not tell its flags" in done.stderr


def test_tune_takes_a_server_too():
    with sglang_server("0.5.16", model_path="mixtral-8x7b", tp_size=2) as url:
        done = tuner("tune", url, "--device", "L40S", "--measure", "predict", "--batch-sizes", "1")
    assert "sglang 0.5.16" in done.stderr


@pytest.mark.parametrize(
    ("answers", "code", "said"),
    [
        ({}, 2, "answers as neither an sglang nor a vLLM server"),
        ({"/server_info": (200, b"[1]")}, 2, "neither"),
        ({"/server_info": (401, b"")}, 2, "asks for a key: name its model"),
        ({"/server_info": (302, b"http://169.254.169.254/")}, 2, "neither"),
        ({"/server_info": (500, b"")}, 1, "/server_info answers 500"),
        ({"/server_info": (200, b"[" * (5 << 20))}, 1, "answers more than 4 MiB"),
    ],
)
def test_what_is_no_server_is_refused(answers, code, said):
    with answering(answers) as url:
        done = tuner("plan", url, "--device", "H200", code=code)
    assert said in " ".join(done.stderr.split())


def test_the_error_of_an_unknown_model_has_the_flags_to_paste():
    with sglang_server("0.5.16", model_path="/data/r1", tp_size=8, quantization="fp8") as url:
        done = tuner("plan", url, "--device", "H200", code=2)
    said = " ".join(done.stderr.split())
    assert "--engine sglang==0.5.16 --server-args '--tp-size 8 --quantization fp8'" in said


@pytest.mark.parametrize("url", ["http://", "http://a b", "https://u@h:1"])
def test_an_address_that_is_none_is_refused(url):
    assert "http://HOST:PORT" in tuner("plan", url, "--device", "H200", code=2).stderr


def test_a_server_that_is_away_is_not_a_wrong_command():
    with answering({}) as url:
        pass  # it has ended
    assert f"{url} does not answer" in tuner("plan", url, "--device", "H200", code=1).stderr

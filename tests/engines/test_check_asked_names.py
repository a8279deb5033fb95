"""`tuner check` names files that an engine never reads: by model, release and folder."""

# ruff: noqa: E501 (names of files are long)

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tuner.cli import app
from tuner.diagnose import diagnose_text

TILE = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1}
FILE = json.dumps({"1": {**TILE, "num_warps": 4, "num_stages": 3}})
SGLANG, VLLM, OLD = "sglang==0.5.16", "vllm==0.33.0", "sglang==0.5.2"
MOE = "E={},N={},device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128]{}.json"
GEMM = "N={},K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"


def checked(path: Path, *words: str) -> tuple[int, list[dict[str, object]], str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(FILE)
    done = CliRunner().invoke(app, ["check", str(path), *words, "--json"])
    report = json.loads(done.stdout) if done.stdout else {}
    return done.exit_code, report.get("unread", []), done.stderr


def spelled_by_vllm(name: str) -> str:
    return name.replace(", ", ",")


# The file, the engine, the server's options, and the name that the engine asks for; "": this one.
OF_MODELS = [
    # Shared experts that the release fuses are among E (sglang), or are not (vLLM).
    (MOE.format(256, 256, ""), SGLANG, "deepseek-r1 --tp 8", MOE.format(257, 256, "")),
    (MOE.format(257, 256, ""), SGLANG, "deepseek-r1 --tp 8", ""),
    (MOE.format(256, 256, ""), SGLANG, "deepseek-r1 --tp 8 --no-fuse-shared", ""),
    (MOE.format(257, 256, "_down"), SGLANG, "deepseek-r1 --tp 8", ""),
    (MOE.format(256, 256, "_down"), SGLANG, "deepseek-r1 --tp 8", MOE.format(257, 256, "_down")),
    (spelled_by_vllm(MOE.format(257, 256, "")), VLLM, "deepseek-r1 --tp 8", MOE.format(256, 256, "")),
    # Expert parallelism divides E, tensor parallelism N.
    (spelled_by_vllm(MOE.format(256, 256, "")), VLLM, "deepseek-r1 --tp 8 --ep 8", MOE.format(32, 2048, "")),
    (spelled_by_vllm(MOE.format(32, 2048, "")), VLLM, "deepseek-r1 --tp 8 --ep 8", ""),
    (MOE.format(257, 128, ""), SGLANG, "deepseek-r1 --tp 8", MOE.format(257, 256, "")),
    # The type of the checkpoint, or another one that the server was told (vllm-project/vllm#40129).
    ("E=128,N=192,device_name=NVIDIA_H200.json", VLLM, "qwen3-30b-a3b-fp8 --tp 4", "E=128,N=192,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[64, 64].json"),
    ("E=128,N=192,device_name=NVIDIA_H200.json", VLLM, "qwen3-30b-a3b --tp 4", ""),
    ("E=128,N=192,device_name=NVIDIA_H200.json", VLLM, "qwen3-30b-a3b --tp 4 --dtype fp8_w8a8", "E=128,N=192,device_name=NVIDIA_H200,dtype=fp8_w8a8.json"),
    # The GPU.
    ("E=128,N=192,device_name=NVIDIA_H200.json", VLLM, "qwen3-30b-a3b --tp 4 --device L40S", "E=128,N=192,device_name=NVIDIA_L40S.json"),
    # Dense GEMMs have a file for each shape.
    (GEMM.format(2112), SGLANG, "deepseek-r1 --tp 8", ""),
    (GEMM.format(2048), SGLANG, "deepseek-r1 --tp 8", GEMM.format(2112)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "engine", "server", "asked"), OF_MODELS)
def test_a_model_s_server_asks_for_a_name(tmp_path, compile_cache, name, engine, server, asked):
    model, *words = server.split()
    code, unread, _ = checked(tmp_path / name, "--engine", engine, "--model", model, *words)
    if not asked:
        assert (code, unread) == (0, [])
        return
    assert code == 1
    (one,) = unread
    wanted = asked if engine.startswith("sglang") else spelled_by_vllm(asked)
    assert wanted in one["asked"]
    assert wanted in one["why"] and f"this file is {name}" in one["why"]


@pytest.mark.parametrize(
    ("card", "name"), [("H200", "NVIDIA_H200"), ("H200", "AMD_Radeon_PRO_W7900")]
)
def test_a_dtype_that_no_name_of_vllm_has_is_checked_and_never_read(
    tmp_path, compile_cache, card, name
):
    asked = f"E=128,N=192,device_name={name}.json"
    path = tmp_path / f"E=128,N=192,device_name={name},dtype=bf16.json"
    code, (one,), _ = checked(path, "--engine", VLLM, "--device", card)
    assert (code, one["asked"]) == (1, [asked])


def test_a_kind_of_file_that_is_never_taken_is_told_before_the_card(tmp_path):
    name = (
        "N=14336,K=5120,device_name=AMD_Radeon_Graphics,dtype=fp8_w8a8,block_shape=[128,128].json"
    )
    code, _, said = checked(tmp_path / name, "--device", "W7900")
    assert code == 2
    assert "neither makes nor checks it" in said


def test_the_nearest_name_of_the_same_gemm_is_told(tmp_path, compile_cache):
    name = MOE.format(256, 256, "_down")
    _, (one,), _ = checked(tmp_path / name, "--engine", SGLANG, "--model", "deepseek-r1", "--tp=8")
    assert "]_down.json; this file" in one["why"]


def test_a_release_without_down_files_never_reads_them(tmp_path, compile_cache):
    name = MOE.format(256, 256, "_down")
    code, (one,), _ = checked(tmp_path / name, "--engine", OLD)
    assert code == 1
    assert f"{name} is never read: sglang 0.5.2 reads no _down files" in one["why"]
    assert checked(tmp_path / name, "--engine", SGLANG)[:2] == (0, [])


def test_a_file_behind_another_triton_s_is_never_read(tmp_path, compile_cache):
    name, configs = MOE.format(256, 256, ""), tmp_path / "configs"
    first = configs / "triton_3_6_0" / name
    code, unread, _ = checked(configs / "triton_3_4_0" / name, "--engine", SGLANG)
    assert (code, unread) == (0, [])  # of another Triton, and there is no other
    assert checked(first, "--engine", SGLANG)[:2] == (0, [])
    code, (one,), _ = checked(configs / "triton_3_4_0" / name, "--engine", SGLANG)
    assert code == 1
    assert f"sglang 0.5.16 with Triton 3.6.0 reads {first}" in one["why"]
    assert checked(tmp_path / "triton_3_4_0" / name, "--engine", SGLANG)[:2] == (0, [])


def test_options_of_a_server_need_its_model(tmp_path):
    name = MOE.format(256, 256, "")
    for words in (("--tp", "8"), ("--ep", "8"), ("--dtype", "bfloat16")):
        code, _, said = checked(tmp_path / name, "--engine", SGLANG, *words)
        assert code == 2 and "--model" in said
    code, _, said = checked(tmp_path / name, "--engine", SGLANG, "--model", "dsr1")
    assert code == 2 and "no preset is called 'dsr1'" in said


def test_a_name_in_a_text_is_held_against_the_server_s(subtests):
    """The same names as above, in a text that says how the server is started."""
    serve = "sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8\nsglang==0.5.16\n"
    asked, other = MOE.format(257, 256, ""), MOE.format(256, 256, "")
    tuned = "tuner tune deepseek-r1 --tp 8 --device H200 --engine sglang==0.5.16"
    answer = diagnose_text(f"{serve}tuned {other} is not loaded").as_text()
    assert f"sglang 0.5.16 asks for {asked}" in answer and tuned in answer
    assert "otherwise without flags" in answer
    assert "is never read" not in diagnose_text(f"{serve}is {asked} loaded?").as_text()
    for flags in ("--quantization fp8", "--dp 8"):
        text = serve.replace("--tp 8", f"--tp 8 {flags}")
        with subtests.test(flags):
            assert "is never read" not in diagnose_text(f"{text}{other}").as_text()


def test_a_name_of_a_model_that_the_engine_refuses_gets_no_command():
    name = "E=128,N=192,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"
    serve = "sglang.launch_server --model-path Qwen/Qwen3-30B-A3B-FP8 --tp 4\nsglang==0.5.16\n"
    answer = diagnose_text(f"{serve}where is {name}?").as_text()
    assert "tuner tune" not in answer
    assert "the nearest that works is tp=2" in answer

"""A config file is judged by the engine that spells names so, and by what that engine runs."""

import json

import pytest
from typer.testing import CliRunner

from tuner.cli import app

VLLM = "E=256,N=1024,device_name=NVIDIA_B200,dtype=fp8_w8a8,block_shape=[128,128].json"
SGLANG = "E=256,N=1024,device_name=NVIDIA_B200,dtype=fp8_w8a8,block_shape=[128, 128].json"
TILE = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 128, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 4}


def checked(folder, name: str, *words: str) -> tuple[int, str]:
    entries = {str(m): {**TILE, "BLOCK_SIZE_K": k} for m, k in ((1, 128), (2, 256))}
    (folder / name).write_text(json.dumps(entries))
    done = CliRunner().invoke(app, ["check", str(folder / name), *words])
    return done.exit_code, " ".join(done.output.split())


@pytest.mark.parametrize("words", [(), ("--engine", "vllm==0.33.0")])
def test_vllm_s_names_are_vllm_s(tmp_path, compile_cache, words: tuple[str, ...]) -> None:
    code, said = checked(tmp_path, VLLM, *words)
    assert code == 0
    assert "vllm 0.33.0 clamps BLOCK_SIZE_K 256 and runs 128 at M=2" in said
    assert ("--engine vllm==VERSION" in said) is (not words)


def test_sglang_s_names_are_sglang_s(tmp_path, compile_cache) -> None:
    code, said = checked(tmp_path, SGLANG, "--engine", "sglang==0.5.16")
    assert code == 0
    assert "clamps" not in said


def test_another_engine_s_spelling_names_that_engine(tmp_path) -> None:
    for name, engine, other in ((VLLM, "sglang==0.5.16", "vllm"), (SGLANG, "vllm", "sglang")):
        code, said = checked(tmp_path, name, "--engine", engine)
        assert code == 2
        assert f"--engine {other}" in said


def test_a_down_file_without_a_type_is_for_its_gpu(tmp_path, compile_cache) -> None:
    name = "E=64,N=1536,device_name=NVIDIA_H200_down.json"
    code, said = checked(tmp_path, name, "--engine", "sglang==0.5.16")
    assert code == 0, said
    assert "NVIDIA_H200_down," not in said
    assert "entries on NVIDIA_H200:" in said

"""A config file is judged by the engine that spells names so, and by what that engine runs."""

import json

import pytest
from typer.testing import CliRunner

from tuner.cli import app
from tuner.errors import UnsupportedKernel

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


def test_a_file_that_cannot_be_checked_is_named_and_ends_no_others(tmp_path, compile_cache) -> None:
    """sglang 0.5.5 ships a file of blocks without a type for the H20, which nothing reads."""
    none = "E=256,N=128,device_name=NVIDIA_H200,block_shape=[128, 128].json"
    code, said = checked(tmp_path, none, "--engine", "sglang==0.5.16")
    assert code == 2 and none in said
    code, said = checked(tmp_path, SGLANG, "--engine", "sglang==0.5.16")
    done = CliRunner().invoke(
        app, ["check", str(tmp_path), "--device", "B200", "--engine", "sglang==0.5.16"]
    )
    assert done.exit_code == code == 0, done.output
    assert "left out: 1 files" in done.stderr and none in done.stderr
    odd = "E=8,N=100,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"
    code, said = checked(tmp_path, odd, "--engine", "sglang==0.5.16")
    assert code == 2 and f"{odd}: N=100 is not a multiple" in said


def test_kernels_of_one_family_that_cannot_be_read_end_no_other_s_check(
    tmp_path, compile_cache, monkeypatch
) -> None:
    def fails(*arguments: object) -> None:
        raise UnsupportedKernel("its launch depends on something")

    monkeypatch.setattr("tuner.families.dense_gemm.check.check_files", fails)
    gemm = "N=1536,K=7168,device_name=NVIDIA_B200,dtype=fp8_w8a8,block_shape=[128, 128].json"
    (tmp_path / gemm).write_text(json.dumps({"1": {**TILE, "BLOCK_SIZE_K": 128}}))
    words = ["--device", "B200", "--engine", "sglang==0.5.16"]
    alone = CliRunner().invoke(app, ["check", str(tmp_path / gemm), *words])
    assert alone.exit_code == 2
    (tmp_path / SGLANG).write_text(json.dumps({"1": {**TILE, "BLOCK_SIZE_K": 128}}))
    both = CliRunner().invoke(app, ["check", str(tmp_path), *words])
    assert both.exit_code == 1, both.output
    said = " ".join(both.stdout.split())
    assert "not checked: 1 files of quantised dense GEMMs: its launch depends" in said
    assert "all can run" in said

"""`tuner check` judges a file by its name: the engine that spells names so, and what it asks for."""

import json

# ruff: noqa: E501 (names of files are long)
from pathlib import Path

import pytest
from tiers import only
from typer.testing import CliRunner

from tuner.cli.commands import app
from tuner.devices.table import find_device
from tuner.diagnose import diagnose_text
from tuner.engines.engine import find_engine
from tuner.errors import UnsupportedKernel
from tuner.families.fused_moe.check import check_files

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
    assert ("--engine names a release" in said) is (not words)


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


@pytest.mark.parametrize(
    ("device", "options", "why"),
    [
        ("H200", {}, "runs a compiled kernel"),
        ("MI300X", {"hidden_size": 4096}, "needs 'SPLIT_K', which nothing here gives it"),
    ],
)
def test_what_is_assumed_is_said_and_what_cannot_be_bound_is_not_judged(
    tmp_path, device: str, options: dict[str, int], why: str
) -> None:
    file = tmp_path / "E=128,N=1536,device_name=NVIDIA_H200,dtype=int4_w4a16.json"
    file.write_text(json.dumps({"1": {**TILE, "BLOCK_SIZE_K": 64}}))
    found = check_files([file], find_device(device), find_engine("vllm==0.33.0"), options)
    said = " ".join(found.as_text().split())
    assert "groups of 128 along K" in said
    assert ("K=7168 (--hidden-size)" in said) is (not options)
    assert "not checked: 2 of 2 launches" in said and "none was checked" in said
    assert why in said
    assert "cannot run" not in said and "cannot bind" not in said
    assert found.as_json()["notes"] == list(found.notes)


# Names of files that an engine never reads: by model, release and folder

ASKED_TILE = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1}
ASKED_FILE = json.dumps({"1": {**ASKED_TILE, "num_warps": 4, "num_stages": 3}})
OF_SGLANG, OF_VLLM, OLD = "sglang==0.5.16", "vllm==0.33.0", "sglang==0.5.2"
MOE = "E={},N={},device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128]{}.json"
CALLED = ("NVIDIA_H100", "NVIDIA_H100_80GB_HBM3")  # by people, and by its driver
RADEON = ("Radeon_8060S_Graphics", "AMD_Radeon_8060S")  # by its driver, and by vLLM
GEMM = "N={},K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"


def checked_json(path: Path, *words: str) -> tuple[int, list[dict[str, object]], str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(ASKED_FILE)
    done = CliRunner().invoke(app, ["check", str(path), *words, "--json"])
    report = json.loads(done.stdout) if done.stdout else {}
    return done.exit_code, report.get("unread", []), done.stderr


def spelled_by_vllm(name: str) -> str:
    return name.replace(", ", ",")


# The file, the engine, the server's options, and the name that the engine asks for; "": this one.
OF_MODELS = [
    # Shared experts that the release fuses are among E (sglang), or are not (vLLM).
    (MOE.format(256, 256, ""), OF_SGLANG, "deepseek-r1 --tp 8", MOE.format(257, 256, "")),
    (MOE.format(257, 256, ""), OF_SGLANG, "deepseek-r1 --tp 8", ""),
    (MOE.format(256, 256, ""), OF_SGLANG, "deepseek-r1 --tp 8 --no-fuse-shared", ""),
    (MOE.format(256, 256, ""), OF_SGLANG, "deepseek-r1 --tp 8 --server-args=--disable-shared-experts-fusion", ""),
    (MOE.format(257, 256, "_down"), OF_SGLANG, "deepseek-r1 --tp 8", ""),
    (MOE.format(256, 256, "_down"), OF_SGLANG, "deepseek-r1 --tp 8", MOE.format(257, 256, "_down")),
    (spelled_by_vllm(MOE.format(257, 256, "")), OF_VLLM, "deepseek-r1 --tp 8", MOE.format(256, 256, "")),
    # Expert parallelism divides E, tensor parallelism N.
    (spelled_by_vllm(MOE.format(256, 256, "")), OF_VLLM, "deepseek-r1 --tp 8 --ep 8", MOE.format(32, 2048, "")),
    (spelled_by_vllm(MOE.format(32, 2048, "")), OF_VLLM, "deepseek-r1 --tp 8 --ep 8", ""),
    (MOE.format(257, 128, ""), OF_SGLANG, "deepseek-r1 --tp 8", MOE.format(257, 256, "")),
    # The type of the checkpoint, or another one that the server was told (vllm-project/vllm#40129).
    ("E=128,N=192,device_name=NVIDIA_H200.json", OF_VLLM, "qwen3-30b-a3b-fp8 --tp 4", "E=128,N=192,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[64, 64].json"),
    ("E=128,N=192,device_name=NVIDIA_H200.json", OF_VLLM, "qwen3-30b-a3b --tp 4", ""),
    ("E=128,N=192,device_name=NVIDIA_H200.json", OF_VLLM, "qwen3-30b-a3b --tp 4 --dtype fp8_w8a8", "E=128,N=192,device_name=NVIDIA_H200,dtype=fp8_w8a8.json"),
    # The GPU.
    ("E=128,N=192,device_name=NVIDIA_H200.json", OF_VLLM, "qwen3-30b-a3b --tp 4 --device L40S", "E=128,N=192,device_name=NVIDIA_L40S.json"),
    # Dense GEMMs have a file for each shape.
    (GEMM.format(2112), OF_SGLANG, "deepseek-r1 --tp 8", ""),
    (GEMM.format(2048), OF_SGLANG, "deepseek-r1 --tp 8", GEMM.format(2112)),
]  # fmt: skip


# One row of each rule on each commit.
KEPT = [OF_MODELS[at] for at in (0, 2, 3, 5, 6, 7, 10, 12, 13, 15)]


@pytest.mark.parametrize(("name", "engine", "server", "asked"), only(KEPT, OF_MODELS))
def test_a_model_s_server_asks_for_a_name(tmp_path, compile_cache, name, engine, server, asked):
    model, *words = server.split()
    code, unread, _ = checked_json(tmp_path / name, "--engine", engine, "--model", model, *words)
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
    code, (one,), _ = checked_json(path, "--engine", OF_VLLM, "--device", card)
    assert (code, one["asked"]) == (1, [asked])


def test_a_kind_of_file_that_is_never_taken_is_told_before_the_card(tmp_path):
    name = (
        "N=14336,K=5120,device_name=AMD_Radeon_Graphics,dtype=fp8_w8a8,block_shape=[128,128].json"
    )
    code, _, said = checked_json(tmp_path / name, "--device", "W7900")
    assert code == 2
    assert "neither makes nor checks it" in said


def test_the_nearest_name_of_the_same_gemm_is_told(tmp_path, compile_cache):
    name = MOE.format(256, 256, "_down")
    _, (one,), _ = checked_json(
        tmp_path / name, "--engine", OF_SGLANG, "--model", "deepseek-r1", "--tp=8"
    )
    assert "]_down.json; this file" in one["why"]


def test_a_name_without_a_gpu_is_never_read(tmp_path, compile_cache):
    """Some repositories have such files, of a torch that gave the GPU no name."""
    name = "E=8,N=64,device_name=.json"
    code, (one,), _ = checked_json(tmp_path / name, "--device", "H200", "--engine", OF_SGLANG)
    assert code == 1
    assert f"{name} is never read: its name has no GPU" in one["why"]


@pytest.mark.parametrize(
    ("name", "engine"),
    [("E=16,N=1024,device_name=NVIDIA_H200.json", OF_VLLM), (GEMM.format(2112), OF_SGLANG)],
)
def test_a_short_name_of_a_gpu_is_never_read(tmp_path, compile_cache, name, engine):
    short, whole = (name.replace("NVIDIA_H200", card) for card in CALLED)
    code, (one,), _ = checked_json(tmp_path / short, "--engine", engine)
    assert (code, one["asked"]) == (1, [whole])
    assert f"asks for {whole}; this file is {short}, so it is never read" in one["why"]
    assert checked_json(tmp_path / whole, "--engine", engine)[:2] == (0, [])


def test_a_name_is_judged_before_its_card_is_refused(tmp_path, subtests):
    """vLLM names this card by its number on the bus, in releases that know it."""
    driver, own = (f"E=256,N=512,device_name={card}.json" for card in RADEON)
    model = ("--model", "qwen3.6-35b-a3b", "--dtype", "int4_w4a16")
    for words in ((), ("--device", "Radeon 8060S"), model):
        with subtests.test(words):
            code, (one,), _ = checked_json(tmp_path / driver, "--engine", OF_VLLM, *words)
            assert (code, one["asked"]) == (1, [own])
    for name, engine in ((own, OF_VLLM), (driver, "vllm==0.10.2"), (driver, OF_SGLANG)):
        with subtests.test((name, engine)):
            code, _, said = checked_json(tmp_path / name, "--engine", engine)
            assert code == 2 and "which was never compiled for here" in said
    odd = "E=8,N=64,device_name=Radeon_8060S_Graphics,block_shape=[128,128].json"
    code, _, said = checked_json(tmp_path / odd, "--engine", OF_VLLM)
    assert code == 2 and "no server looks for" in said


def test_a_file_for_a_kernel_of_another_kind_has_its_reader_named(tmp_path):
    name = "E=384,N=256,device_name=AMD_Instinct_MI350X,dtype=int4_w4a16,backend=flydsl.json"
    code, _, said = checked_json(tmp_path / name, "--engine", OF_VLLM)
    assert code == 2
    assert (
        "vllm 0.33.0 reads files of such names in model_executor/layers/fused_moe/fused_fly" in said
    )
    code, _, said = checked_json(tmp_path / name.replace("flydsl", "mine"), "--engine", OF_VLLM)
    assert code == 2 and "is not the name of a file that vllm reads" in said


def test_what_runs_is_told_of_the_model_s_server(tmp_path, compile_cache):
    """Triton runs 16-bit weights as in the name of the file, and Marlin the model's int4."""
    path = tmp_path / "E=48,N=768,device_name=NVIDIA_GeForce_RTX_3090.json"
    model = ("--model", "qwen3.5-35b-a3b", "--dtype", "int4_w4a16", "--block-shape", "0x32")
    code, _, said = checked_json(path, "--engine", OF_VLLM, *model, "--tp", "2", "--ep", "2")
    assert code == 1
    assert "RTX_3090 runs Marlin here" in said and "runs Triton here" not in said
    assert "runs Triton here" in checked_json(path, "--engine", OF_VLLM)[2]


def test_a_release_without_down_files_never_reads_them(tmp_path, compile_cache):
    name = MOE.format(256, 256, "_down")
    code, (one,), _ = checked_json(tmp_path / name, "--engine", OLD)
    assert code == 1
    assert f"{name} is never read: sglang 0.5.2 reads no _down files" in one["why"]
    assert checked_json(tmp_path / name, "--engine", OF_SGLANG)[:2] == (0, [])


def test_a_file_behind_another_triton_s_is_never_read(tmp_path, compile_cache):
    name, configs = MOE.format(256, 256, ""), tmp_path / "configs"
    first = configs / "triton_3_6_0" / name
    code, unread, _ = checked_json(configs / "triton_3_4_0" / name, "--engine", OF_SGLANG)
    assert (code, unread) == (0, [])  # of another Triton, and there is no other
    assert checked_json(first, "--engine", OF_SGLANG)[:2] == (0, [])
    code, (one,), _ = checked_json(configs / "triton_3_4_0" / name, "--engine", OF_SGLANG)
    assert code == 1
    assert f"sglang 0.5.16 with Triton 3.6.0 reads {first}" in one["why"]
    assert checked_json(tmp_path / "triton_3_4_0" / name, "--engine", OF_SGLANG)[:2] == (0, [])


def test_options_of_a_server_need_its_model(tmp_path):
    name = MOE.format(256, 256, "")
    for words in (
        ("--tp", "8"),
        ("--ep", "8"),
        ("--dtype", "bfloat16"),
        ("--server-args", "--dp 8"),
    ):
        code, _, said = checked_json(tmp_path / name, "--engine", OF_SGLANG, *words)
        assert code == 2 and "--model" in said
    code, _, said = checked_json(tmp_path / name, "--engine", OF_SGLANG, "--model", "dsr1")
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
    assert "the nearest that works with sglang 0.5.16 is tp=2" in answer

"""`tuner check`: files of dense GEMMs, and the kernels of a model's attention."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from gemm_cases import BLOCKS as WITHOUT_FILE
from gemm_cases import tile
from tiers import only

from tuner.devices.table import find_device
from tuner.engines.engine import find_engine, triton_for
from tuner.engines.settings import of_class
from tuner.errors import MalformedConfigFile, UnsupportedKernel
from tuner.families.attention.check import check_problems as check_attention
from tuner.families.attention.problem import parse_attention
from tuner.families.dense_gemm.check import GemmCheck, check_files, check_problems, claims
from tuner.families.dense_gemm.problem import parse_dense_gemm
from tuner.problems.points import Config
from tuner.problems.registry import family_of, parse_problem

L40S = find_device("L40S")
ENGINE = find_engine("sglang==0.5.23")
BLOCKS = "N=2112,K=7168,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128, 128].json"
CHANNELS = "N=2112,K=7168,device_name=NVIDIA_L40S,dtype=fp8_w8a8_channelwise.json"
GOOD = tile(16, 32, stages=5, group=1)


def checked(
    folder: Path, rows: Mapping[int, Config | dict[str, Any] | None], name: str = BLOCKS
) -> GemmCheck:
    path = folder / name
    path.write_text(json.dumps({str(M): row and dict(row) for M, row in rows.items()}))
    return check_files([path], L40S, ENGINE, {})


def test_entries_that_fit_and_that_do_not_are_told_apart(tmp_path: Path) -> None:
    found = checked(tmp_path, {1: GOOD, 4096: tile(128, 256, warps=8, stages=4)})
    assert [entry.fits for entry in found.entries] == [True, False]
    assert not found.fits
    good, bad = found.as_json()["entries"]
    assert good["problem"] == "block_gemm:N=2112,K=7168,dtype=fp8_w8a8,block=128x128"
    assert 0 < good["shared_bytes"] <= good["limit_bytes"] == L40S.shared_optin_bytes
    assert (bad["status"], bad["shared_bytes"]) == ("out_of_resources", 148_480)
    assert found.as_text().endswith("2 entries on NVIDIA_L40S: 1 cannot run")


@pytest.mark.parametrize("key", ["SPLIT_KK", "SPLIT_K"])  # SPLIT_K is for sm_90 alone
def test_a_key_that_the_kernel_does_not_take_stops_the_server(tmp_path: Path, key: str) -> None:
    found = checked(tmp_path, {1: GOOD, 2: {**GOOD, key: 2}})
    assert [entry.fits for entry in found.entries] == [True, False]
    assert f"takes no config key '{key}'" in found.entries[1].why
    assert found.entries[1].why.endswith("it stops the server")
    assert f"{key}=2" in found.as_text()


def test_a_file_without_small_sizes_is_warned_of_and_fits(tmp_path: Path) -> None:
    found = checked(tmp_path, {2048: GOOD, 4096: GOOD})
    assert found.fits
    ((warned, text),) = found.warnings.items()
    assert Path(warned).name == BLOCKS
    assert text.startswith("every batch below 2048 runs the entry for 2048")
    assert found.as_json()["warnings"] == [{"file": warned, "warning": text}]
    assert f"warning: {text}" in found.as_text()
    assert found.as_text().endswith("all can run; 1 file is likely slower than none")


def test_a_file_with_small_sizes_is_not_warned_of(tmp_path: Path) -> None:
    found = checked(tmp_path, {1: GOOD, 4096: GOOD})
    assert found.as_json()["warnings"] == []
    assert "warning" not in found.as_text()


def test_a_null_entry_leaves_its_size_to_another_kernel(tmp_path: Path) -> None:
    channel = Config({k: v for k, v in GOOD.items() if k != "GROUP_SIZE_M"})
    found = checked(tmp_path, {1: channel, 512: None}, CHANNELS)
    assert found.fits
    one, null = found.as_json()["entries"]
    assert one["status"] == "ok"
    assert (null["config"], null["status"], null["shared_bytes"]) == (None, "null", None)
    assert "CUTLASS" in null["detail"]


def test_a_null_entry_of_blocks_is_malformed(tmp_path: Path) -> None:
    with pytest.raises(MalformedConfigFile, match="must hold a configuration, not null"):
        checked(tmp_path, {1: None})


def test_a_step_that_the_engine_raises_is_said(tmp_path: Path) -> None:
    found = checked(tmp_path, {1: tile(16, 32, 96, stages=3, group=1)})
    assert found.entries[0].why == "the engine raises BLOCK_SIZE_K to 128"


def test_a_value_that_no_launch_can_have_is_malformed(tmp_path: Path) -> None:
    with pytest.raises(MalformedConfigFile, match="num_warps"):
        checked(tmp_path, {1: {**GOOD, "num_warps": 0}})


def test_a_models_gemms_are_checked_as_the_engine_runs_them() -> None:
    shipped = parse_dense_gemm("block_gemm:N=32768,K=512,dtype=fp8_w8a8,block=128x128")
    h200 = find_device("H200")
    found = check_problems([shipped, WITHOUT_FILE], h200, ENGINE)
    assert found.fits
    files = list(dict.fromkeys(entry.file for entry in found.entries))
    assert Path(files[0]).is_file()  # sglang ships one for an H200
    assert files[1] == f"{WITHOUT_FILE.spec()}: the default of sglang 0.5.23"
    sizes = [entry.size for entry in found.entries if entry.file == files[1]]
    assert sizes == [1]  # one configuration for all
    assert not found.warnings


def test_a_kernel_that_does_not_run_is_not_judged() -> None:
    """Without a file, this release runs CUTLASS for fp8 with a scale for each channel."""
    problem = parse_dense_gemm("channel_gemm:N=5120,K=5120,dtype=fp8_w8a8")
    found = check_problems([problem], L40S, ENGINE)
    assert not found.entries
    text = " ".join(found.as_text().split())
    assert f"{problem.spec()}: without a file, sglang 0.5.23 on {L40S.name} runs CUTLASS" in text
    assert text.endswith("0 entries on NVIDIA_L40S: none was checked")
    (runs,) = found.as_json()["runs"]
    assert runs["kernels"][0]["backend"] == "cutlass"


def test_names_of_other_families_are_not_claimed() -> None:
    assert claims(BLOCKS, ENGINE)
    assert claims(CHANNELS, ENGINE)
    assert not claims("E=256,N=256,device_name=NVIDIA_L40S.json", ENGINE)
    assert not claims(BLOCKS.replace("[128, 128]", "[128,128]"), ENGINE)


# What the engine would launch for a model's attention, compiled by real workers

GATED = (
    "gated_delta:key_heads=16,value_heads=32,key_dim=128,value_dim=128,dtype=bfloat16,"
    "state_dtype=float32,chain=split"
)
MLA = "q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16"


def check(text, device, version):
    problem = parse_attention(text)
    return check_attention([problem], find_device(device), find_engine(f"sglang=={version}"))


RELEASES = [
    ("0.4.4", "L40S", 106_496, False),
    ("0.5.23", "L40S", 71_680, True),
    ("0.5.2", "L40S", 71_680, True),
    ("0.5.2", "RTX PRO 6000", 106_496, False),
    ("0.5.23", "RTX PRO 6000", 71_680, True),
    ("0.4.4", "A100", 106_496, True),
]


@pytest.mark.parametrize(
    ("version", "device", "shared_bytes", "fits"), only(RELEASES[:2], RELEASES)
)
def test_deepseeks_extend_fits_or_does_not(version, device, shared_bytes, fits):
    report = check(f"extend_attention:{MLA}", device, version)
    (found,) = report.entries
    assert (found.compiled.shared_bytes, found.compiled.ok) == (shared_bytes, fits)
    assert report.fits is fits
    assert ("would crash" in report.as_text()) is not fits
    assert (found.fits_with is None) is fits


def test_what_does_not_fit_is_told_what_would():
    report = check(f"extend_attention:{MLA}", "L40S", "0.4.4")
    assert report.entries[0].fits_with == report.entries[0].config.replace(BLOCK_N=32)
    assert "1 kernel of sglang 0.4.4 on NVIDIA_L40S: 1 would crash\n" in report.as_text()
    assert "fits with BLOCK_N 32" in report.as_text()


def test_a_card_that_the_engines_triton_does_not_know_is_told():
    if triton_for(find_engine("sglang==0.4.4")).version != "3.1.0":
        pytest.skip("no triton-3.1.0 beside the engines: `make test` unpacks it")
    report = check(f"extend_attention:{MLA}", "RTX PRO 6000", "0.4.4")
    assert not report.fits
    assert "computeCapability not supported" in report.as_text()


def test_both_of_decodes_kernels_are_checked():
    report = check(f"decode_attention:{MLA}", "L40S", "0.5.16")
    assert [k.kernel for k in report.entries] == [
        "_fwd_grouped_kernel_stage1",
        "_fwd_kernel_stage2",
    ]
    assert [entry["part"] for entry in report.as_json()["entries"]] == ["decode", "reduce"]
    assert report.as_text().endswith("2 kernels of sglang 0.5.16 on NVIDIA_L40S: all fit")
    (runs,) = report.runs
    assert runs.line().endswith("runs Triton here; it reads tuned files")


OTHERS = [
    ("sglang==0.5.16", f"extend_attention:{MLA}", "H100", "FlashAttention 3"),
    ("sglang==0.5.16", f"decode_attention:{MLA}", "B200", "FlashInfer (TRT-LLM MLA)"),
    ("vllm==0.33.0", GATED, "H200", "FlashInfer"),
    # Triton's own launch is refused on this card.
    ("sglang==0.5.16", "block_gemm:N=512,K=512,dtype=fp8_w8a8,block=128x128", "A100", "Marlin"),
]


@pytest.mark.parametrize(("engine", "text", "device", "kernel"), OTHERS)
def test_no_family_judges_a_kernel_that_does_not_run(engine, text, device, kernel):
    problem = parse_problem(text)
    module: Any = family_of(problem).module("check")
    found = module.check_problems([problem], find_device(device), find_engine(engine))
    assert (found.fits, list(found.entries)) == (True, [])
    said = " ".join(found.as_text().split())
    assert f"runs {kernel}" in said
    assert "so there is no entry to compile" in said
    assert said.endswith(f"on {find_device(device).name}: none was checked")


def test_a_models_class_says_what_its_attention_runs():
    card, engine = find_device("L40S"), find_engine("sglang==0.5.16")
    problem = parse_attention("decode_attention:q_heads=8,kv_heads=1,Lq=128,Lv=128,dtype=bfloat16")
    flags = of_class({}, "Llama4ForConditionalGeneration")
    (runs,) = check_attention([problem], card, engine, flags).runs
    assert runs.words.endswith("runs Triton here")


def test_a_kernel_that_the_version_lacks_is_named():
    text = "extend_attention:q_heads=64,kv_heads=8,Lq=64,Lv=64,dtype=bfloat16,sinks"
    with pytest.raises(UnsupportedKernel, match="this version's kernel has no sinks"):
        check(text, "L40S", "0.4.4")

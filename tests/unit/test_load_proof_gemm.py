"""Load proof of dense GEMMs: the messages are made by the plugin and the real loaders."""

import logging
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from gemm_cases import tile
from log_lines import parse_log
from plugin_cases import gemm_file, here, put

from tuner.bindings.sglang.plugin import gemm
from tuner.deploy.load_proof import render_proof
from tuner.deploy.load_proof.asked import asked_of
from tuner.deploy.load_proof.deployed import Deployed
from tuner.deploy.load_proof.proof import LoadOutcome
from tuner.engines.logs.facts import facts_of_line
from tuner.families.dense_gemm.problem import DenseGemm, parse_dense_gemm
from tuner.problems.points import Config
from tuner.problems.results import Status

FP8 = parse_dense_gemm("block_gemm:N=2112,K=7168,dtype=fp8_w8a8,block=128x128")
CHANNEL = parse_dense_gemm("channel_gemm:N=64,K=32,dtype=fp8_w8a8")
TILE = tile(16, 64, 128, group=8, stages=4)


def place(root: Path, problem: DenseGemm, status: Status = Status.OK, **changes: str) -> Path:
    constants = Config({k: v for k, v in TILE.items() if problem.block or k != "GROUP_SIZE_M"})
    return put(root, gemm_file(problem, {1: constants}, {1: status}, **changes))


@pytest.fixture
def said(monkeypatch, caplog):
    """What a rank logs when its engine asks for files of problems."""
    monkeypatch.setattr(gemm, "_runtime_facts", here)

    def ask(root: Path, *problems: DenseGemm, rank: str = "TP0") -> list[str]:
        caplog.clear()
        files = gemm.ServedFiles(root)
        with caplog.at_level(logging.INFO):
            for problem in problems:
                files.entries(problem)
        return [f"[2026-11-01 10:00:00 {rank}] {r.getMessage()}" for r in caplog.records]

    return ask


def test_files_that_are_used(said, tmp_path):
    paths = [place(tmp_path, FP8), place(tmp_path, CHANNEL, Status.PREDICTED)]
    lines = [*said(tmp_path, FP8, CHANNEL), *said(tmp_path, FP8, CHANNEL, rank="TP1")]
    proof = parse_log(lines)
    assert proof.ok, proof.problems()
    first, second = proof.loads
    assert (first.family, first.name, first.outcome) == (
        "dense_gemm",
        paths[0].stem,
        LoadOutcome.LOADED,
    )
    assert (first.used, first.triton, first.ranks) == (str(paths[0]), "3.6.0", ("TP0", "TP1"))
    assert (first.reason, second.reason) == ("", "predicted")
    assert f"read {paths[0]} (Triton 3.6.0)" in render_proof(proof)


def test_a_file_of_another_triton_beside_one_that_serves(said, tmp_path):
    place(tmp_path, FP8)
    place(tmp_path, FP8, triton="3.5.1")
    proof = parse_log(said(tmp_path, FP8))
    assert proof.ok, proof.problems()
    refused = next(load for load in proof.loads if load.outcome is LoadOutcome.REFUSED)
    assert refused.reason == "made for triton 3.5.1, this is 3.6.0"


def test_no_file_applies(said, tmp_path):
    place(tmp_path, FP8, device="NVIDIA_L40S")
    proof = parse_log(said(tmp_path, FP8))
    assert proof.problems() == ["dense_gemm: every file: default: no file applies"]


MISSING = (
    "[2026-11-01 10:00:00 TP0] Using default W8A8 Block FP8 kernel config. Performance might be "
    "sub-optimal! Config file not found at {folder}/N=2112,K=7168,device_name=NVIDIA_H200,"
    "dtype=fp8_w8a8,block_shape=[128, 128].json"
)
SGLANG = MISSING.format(folder="/opt/sglang/srt/layers/quantization/configs")
KEY = SGLANG.rpartition("/")[2].removesuffix(".json")
LOADED = "Using MoE kernel config from /c/triton_3_6_0/E=8,N=64,device_name=NVIDIA_H200.json."
MOE_FILE = {"triton_3_6_0/E=8,N=64,device_name=NVIDIA_H200.json": {"ok": 1}}


def test_a_gemm_file_that_a_bundle_never_had_is_a_note():
    proof = parse_log([LOADED, SGLANG], Deployed(MOE_FILE))
    assert proof.ok, proof.problems()
    assert proof.notes() == [f"{KEY}: no tuned file; the engine's own runs"]
    assert f"note            {KEY}: no tuned file" in render_proof(proof)
    assert proof.as_dict()["notes"] == proof.notes()


MOE_MISSING = (
    "Config file not found at {folder}/triton_3_6_0/E=8,N=32,device_name=NVIDIA_H200.json. "
    "Fallback to triton version 3.2.0 and use MoE kernel config from "
    "{folder}/triton_3_2_0/E=8,N=32,device_name=NVIDIA_H200.json. Performance might be sub-optimal!"
).format(folder="/opt/sglang/configs")


def test_a_moe_file_is_missing_only_if_such_files_were_made(said, tmp_path):
    path = place(tmp_path, FP8)
    lines = [*said(tmp_path, FP8), MOE_MISSING]
    key = "E=8,N=32,device_name=NVIDIA_H200"
    proof = parse_log(lines, Deployed({str(path): {"ok": 1}}))
    assert proof.ok, proof.problems()
    assert proof.notes() == [f"{key}: no tuned file; the engine's own runs"]
    proof = parse_log([*lines, LOADED], Deployed({str(path): {"ok": 1}, **MOE_FILE}))
    assert proof.problems() == [f"{key}: fallback"]


def test_a_gemm_file_that_a_bundle_has_must_be_loaded():
    proof = parse_log([LOADED, SGLANG], Deployed({**MOE_FILE, f"triton_3_6_0/{KEY}.json": {}}))
    assert not proof.ok
    assert proof.notes() == []


def test_without_a_bundle_a_missing_gemm_file_may_be_one_that_was_tuned():
    assert KEY in parse_log([SGLANG]).problems()[0]


def test_no_gemm_file_can_be_made_for_vllm(tmp_path):
    folder = "/opt/vllm/model_executor/layers/quantization/utils/configs"
    proof = parse_log([LOADED, MISSING.format(folder=folder)], Deployed(MOE_FILE))
    alone = parse_log([MISSING.format(folder=folder)])
    assert proof.ok, proof.problems()
    assert not any(KEY in problem for problem in alone.problems())


def test_a_malformed_file_is_named(said, tmp_path):
    place(tmp_path, FP8)
    broken = tmp_path / "gemm" / "triton_3_6_0" / "broken.json"
    broken.write_text("{}")
    [trouble] = parse_log(said(tmp_path, FP8)).problems()
    assert trouble.startswith("dense_gemm: broken: malformed: its format is None")


PATH = "/s/configs/N=512,K=1024,device_name=NVIDIA_L40S,dtype={}_w8a8,block_shape=[128, 128].json"


@pytest.mark.parametrize(("kind", "word"), [("fp8", "FP8"), ("int8", "INT8")])
def test_the_engines_own_lines_for_blocks(kind, word):
    path = PATH.format(kind)
    [load] = parse_log([f"Using configuration from {path} for W8A8 Block {word} kernel."]).loads
    assert (load.family, load.outcome, load.used) == ("dense_gemm", LoadOutcome.LOADED, path)
    warning = (
        f"Using default W8A8 Block {word} kernel config. Performance might be sub-optimal! "
        f"Config file not found at {path}"
    )
    proof = parse_log([warning])
    [load] = proof.loads
    assert (load.family, load.outcome) == ("dense_gemm", LoadOutcome.DEFAULT)
    assert load.wanted == (path,)
    assert proof.problems() == [f"{Path(path).stem}: default"]


def test_files_that_deterministic_inference_turns_off_are_not_malformed(
    said, tmp_path, monkeypatch
):
    place(tmp_path, FP8)
    monkeypatch.setattr(gemm, "_runtime_facts", lambda: here(unless="inference is deterministic"))
    default, refused = parse_log(said(tmp_path, FP8)).loads
    assert default.outcome is LoadOutcome.DEFAULT
    assert (refused.outcome, refused.reason) == (
        LoadOutcome.REFUSED,
        "inference is deterministic",
    )


def test_the_one_line_of_a_folder_that_serves_a_fleet_is_read(said, tmp_path):
    place(tmp_path, FP8)
    for number in range(20):
        place(tmp_path, FP8, device=f"NVIDIA_CARD_{number}")
    lines = said(tmp_path, FP8)
    assert len(lines) == 2
    proof = parse_log(lines)
    assert proof.ok, proof.problems()
    outcomes = [load.outcome for load in proof.loads]
    assert outcomes.count(LoadOutcome.LOADED) == 1
    assert LoadOutcome.FAILED not in outcomes and LoadOutcome.MALFORMED not in outcomes
    refused = [load for load in proof.loads if load.outcome is LoadOutcome.REFUSED]
    assert "refused 12 more files" in {load.reason for load in refused}


def test_of_a_card_with_two_names_the_server_s_own_counts(subtests):
    """An export has a file for each name of the card, and a server asks by its driver's name."""
    names = [f"E=77,N=384,device_name=AMD_Instinct_MI355{end}" for end in ("X", "_OAM")]
    folder = Deployed(tuned={f"configs/{name}.json": {"ok": 1} for name in names})
    for deployed, own in product((folder, replace(folder, asked=frozenset(names))), names):
        with subtests.test(asked=deployed.asked, own=own):
            found = asked_of(deployed, facts_of_line(f"found /x/configs/{own}.json"), [own])
            assert (found.yes, found.no) == (frozenset({own}), frozenset(names) - {own})

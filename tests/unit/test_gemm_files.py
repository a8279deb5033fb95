"""The plugin's GEMM files: what is written is read back, and nothing malformed reaches a kernel."""

import json
import logging
from pathlib import Path

import pytest
from gemm_cases import tile
from plugin_cases import gemm_file, here, put

from tuner.bindings.sglang.plugin import gemm
from tuner.bindings.sglang.plugin.file_checks import RuntimeFacts, check_gemm_file
from tuner.bindings.sglang.plugin.gemm_files import (
    find_gemm_files,
    gemm_file_name,
    gemm_root,
    read_gemm_file,
)
from tuner.errors import MalformedConfigFile
from tuner.families.dense_gemm.problem import DenseGemm, parse_dense_gemm
from tuner.problems.points import Config
from tuner.problems.results import Status

FP8 = parse_dense_gemm("block_gemm:N=2112,K=7168,dtype=fp8_w8a8,block=128x128")
CHANNEL = parse_dense_gemm("channel_gemm:N=64,K=32,dtype=fp8_w8a8,out=float16")
TILE = tile(16, 64, 128, group=8, stages=4)
CHANNEL_TILE = Config({k: v for k, v in TILE.items() if k != "GROUP_SIZE_M"})


def made(problem=FP8, entries=None, statuses=None, **changes):
    entries = entries or {1: TILE, 64: TILE.replace(SWAP_AB=1, SPLIT_K=4)}
    return gemm_file(problem, entries, statuses, **changes)


@pytest.mark.parametrize(
    "file",
    [made(), made(CHANNEL, {7: CHANNEL_TILE}), made(statuses={1: Status.OK, 64: Status.PREDICTED})],
)
def test_what_is_written_is_read_back(file, tmp_path):
    assert read_gemm_file(put(tmp_path, file)) == file


def test_entries_are_as_the_engine_takes_them():
    entries = made().engine_entries()
    assert entries == {1: dict(TILE), 64: {**TILE, "SWAP_AB": True, "SPLIT_K": 4}}
    assert entries[64]["SWAP_AB"] is True


def test_sizes_are_ascending_whatever_their_order(tmp_path):
    """The engine takes the first of two that are equally near."""
    file = made(entries={64: TILE, 1: TILE})
    assert list(file.engine_entries()) == list(read_gemm_file(put(tmp_path, file)).entries)
    assert list(file.engine_entries()) == [1, 64]


def test_a_name_is_the_same_for_all_outputs():
    """The engine's loader does not know the output."""
    half = parse_dense_gemm(f"{FP8.spec()},out=float16")
    assert gemm_file_name(FP8, "NVIDIA_H200") == gemm_file_name(half, "NVIDIA_H200")


def test_titles():
    assert made().title == "2112x7168 fp8_w8a8 128x128"
    assert made(CHANNEL, {1: CHANNEL_TILE}).title == "64x32 fp8_w8a8 channels"
    assert not made(statuses={1: Status.OK, 64: Status.PREDICTED}).predicted
    assert made(statuses=dict.fromkeys((1, 64), Status.PREDICTED)).predicted


def test_files_are_found_for_any_triton(tmp_path):
    paths = [put(tmp_path, made(triton=triton)) for triton in ("3.8.0", "3.6.0")]
    (tmp_path / "gemm" / "README").write_text("")
    assert find_gemm_files(tmp_path) == sorted(paths)
    assert find_gemm_files(tmp_path / "missing") == []


def test_the_variables():
    assert gemm_root({}) is None
    assert gemm_root({"SGLANG_MOE_CONFIG_DIR": "/a"}) == ("SGLANG_MOE_CONFIG_DIR", Path("/a"))
    both = {"SGLANG_MOE_CONFIG_DIR": "/a", "TUNER_GEMM_CONFIG_DIR": "/b"}
    assert gemm_root(both) == ("TUNER_GEMM_CONFIG_DIR", Path("/b"))


def entry(**changes):
    return {"1": {"config": {**TILE, **changes}, "status": "ok"}}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": 2}, "its format is 2; this version of the tuner reads 1"),
        ({"problem": "fused_moe:E=1"}, "'fused_moe:E=1' is no dense GEMM"),
        ({"problem": "block_gemm:N=1"}, "block_gemm"),
        ({"problem": 3}, "'problem' must be text"),
        ({"triton": ""}, "'triton' must be text"),
        ({"entries": {}}, "it holds no entries"),
        ({"entries": []}, "it holds no entries"),
        ({"entries": {"1": 2}}, "key '1' must hold an object"),
        ({"entries": {"01": entry()["1"]}}, "key '01' is not a batch size"),
        ({"entries": {"1": {"config": None, "status": "ok"}}}, "must hold a configuration"),
        ({"entries": entry(BLOCK_SIZE_Q=1)}, "unknown field 'BLOCK_SIZE_Q'; did you mean"),
        ({"entries": entry(BLOCK_SIZE_M=0)}, "'BLOCK_SIZE_M' must be from 1"),
        ({"entries": entry(SWAP_AB=1)}, "'SWAP_AB' must be true or false, not 1"),
        ({"entries": entry(SPLIT_K=3)}, "SPLIT_K must be a power of two, not 3"),
        ({"entries": {"1": {"config": dict(TILE), "status": "good"}}}, "status must be ok or"),
        ({"entries": {"1": {"config": {}, "status": "ok"}}}, "lacks field 'BLOCK_SIZE_M'"),
    ],
)
def test_malformed_files_are_refused(changes, says, tmp_path):
    path = tmp_path / "file.json"
    path.write_text(json.dumps({**json.loads(made().text()), **changes}))
    with pytest.raises(MalformedConfigFile) as refusal:
        read_gemm_file(path)
    assert str(refusal.value).startswith(f"{path}: ")
    assert str(refusal.value).count(str(path)) == 1
    assert says in str(refusal.value)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"null"])
def test_what_is_no_object_is_refused(data, tmp_path):
    path = tmp_path / "file.json"
    path.write_bytes(data)
    with pytest.raises(MalformedConfigFile, match=str(path)):
        read_gemm_file(path)
    with pytest.raises(MalformedConfigFile, match="cannot be read"):
        read_gemm_file(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("file", "facts", "reason"),
    [
        (made(), here(), ""),
        (made(device="NVIDIA_L40S"), here(), "made for NVIDIA_L40S, this is NVIDIA_H200"),
        (made(triton="3.5.1"), here(), "made for triton 3.5.1, this is 3.6.0"),
        (made(engine_version="0.5.12"), here(), ""),
        (
            made(engine_version="0.5.12", kernel_hash="others"),
            here(),
            "made for sglang 0.5.12, whose kernels are not those of 0.5.16",
        ),
    ],
)
def test_a_file_is_used_only_where_it_was_made_for(file, facts, reason, tmp_path):
    path = put(tmp_path, file)
    check = check_gemm_file(path, facts)
    assert (check.reason, check.used) == (reason, not reason)
    expected = f"refused {path}: {reason}" if reason else f"{file.title} from {path}"
    assert str(check) == expected


def test_a_file_that_the_engine_does_not_ask_for_is_refused(tmp_path):
    check = check_gemm_file(put(tmp_path, made()), here(), lambda problem: False)
    assert check.reason == "sglang 0.5.16 asks for no file for such a GEMM"


def test_what_is_not_known_is_not_compared(tmp_path):
    assert check_gemm_file(put(tmp_path, made()), here(device=None, triton=None)).used


def test_served_files_never_raise(tmp_path, monkeypatch, caplog):
    put(tmp_path, made())

    def broken() -> RuntimeFacts:
        raise RuntimeError("no GPU")

    monkeypatch.setattr(gemm, "_runtime_facts", broken)
    files = gemm.ServedFiles(tmp_path)
    with caplog.at_level(logging.INFO):
        assert files.entries(FP8) is None
        assert files.entries(FP8) is None
    assert [record.getMessage() for record in caplog.records] == ["tuner gemm: nothing is applied"]


def test_a_hooked_loader_asks_the_engines_for_everything_else(tmp_path, monkeypatch):
    put(tmp_path, made())
    monkeypatch.setattr(gemm, "_runtime_facts", here)
    asked: list[tuple[int, ...]] = []

    def own(N: int, K: int, block_n: int, block_k: int) -> str:
        asked.append((N, K, block_n, block_k))
        return "the engine's"

    hooked = gemm.around(gemm.LOADERS[0], own, gemm.ServedFiles(tmp_path))
    assert hooked(own, 2112, 7168, 128, 128) == made().engine_entries()
    assert hooked(own, 2112, 7168, block_n=128, block_k=128) == made().engine_entries()
    first = hooked(own, 2112, 7168, 128, 128)
    assert first is hooked(own, 2112, 7168, 128, 128)  # as lru_cache gives it
    assert not asked
    assert hooked(own, 2112, 7168, 32, 32) == hooked(own, 1, 2, 128, 128) == "the engine's"
    assert asked == [(2112, 7168, 32, 32), (1, 2, 128, 128)]
    # A problem that no GEMM has is the engine's to answer, too.
    assert hooked(own, 0, 0, 128, 128) == "the engine's"
    with pytest.raises(TypeError):
        hooked(own, 1)


def test_problems_with_other_outputs_are_served(tmp_path, monkeypatch):
    put(tmp_path, made(CHANNEL, {7: CHANNEL_TILE}))
    monkeypatch.setattr(gemm, "_runtime_facts", here)
    asked = DenseGemm(64, 32, CHANNEL.dtype)  # a loader does not know the output
    assert gemm.ServedFiles(tmp_path).entries(asked) == {7: dict(CHANNEL_TILE)}

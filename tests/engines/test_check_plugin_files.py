"""`tuner check` of a folder says which of the plugin's files servers refuse, and compiles none."""

from __future__ import annotations

import json
import sys
from functools import cache
from types import ModuleType

import plugin_cases
import pytest
import torch
from gemm_cases import tile
from plugin_cases import attention_file, gemm_file
from typer.testing import CliRunner

from tuner.bindings.sglang.attention.binding import lift_attention
from tuner.bindings.sglang.plugin import hooks
from tuner.bindings.sglang.plugin import scan as sglang_scan
from tuner.bindings.sglang.plugin.files import AttentionEntry
from tuner.bindings.vllm.plugin import scan as vllm_scan
from tuner.cli.commands import app
from tuner.devices.target import CUDA, HIP
from tuner.engines.engine import find_engine, kernel_hash
from tuner.export import delivery
from tuner.export.delivery import server_facts
from tuner.families.attention.problem import AttentionPart
from tuner.families.dense_gemm.problem import parse_dense_gemm
from tuner.problems.points import Config
from tuner.problems.registry import parse_problem
from tuner.problems.results import Status

EXTEND = "extend_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16"
FP8 = "block_gemm:N=2112,K=7168,dtype=fp8_w8a8,block=128x128"
CHANNEL = "channel_gemm:N=2112,K=7168,dtype=fp8_w8a8"
TILE = tile(16, 64, 128, group=8, stages=4)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


@cache
def hash_of(family: str) -> str:
    return kernel_hash(find_engine("sglang==0.5.16"), family)


def put(root, **changes):
    config = Config({"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2})
    entries = [AttentionEntry(AttentionPart.EXTEND, 4, 1, config, Status.OK, 50_000)]
    made = {"kernel_hash": hash_of("attention"), **changes}
    return plugin_cases.put(root, attention_file(parse_problem(EXTEND), entries, **made))


def put_gemm(root, spec=FP8, **changes):
    problem = parse_dense_gemm(spec)
    one = Config({k: v for k, v in TILE.items() if problem.block or k != "GROUP_SIZE_M"})
    made = {"kernel_hash": hash_of("dense_gemm"), **changes}
    return plugin_cases.put(root, gemm_file(problem, {1: one, 64: one}, **made))


def checked(*paths, engine="sglang==0.5.16"):
    words = ["check", *map(str, paths), "--device", "H200", "--engine", engine, "--json"]
    done = CliRunner().invoke(app, words)
    return done.exit_code, json.loads(done.stdout)


def refused(report):
    """Why each file is refused, by its path."""
    return {one["file"]: one["why"].partition(": ")[2] for one in report.get("unread", ())}


def test_files_that_servers_take_are_said_to_be_not_compiled(root):
    put(root)
    put_gemm(root)
    code, report = checked(root)
    assert (code, report["entries"], refused(report)) == (0, [], {})
    (note,) = report["notes"]
    assert "2 files" in note and "not compiled" in note and "refuses none" in note


def test_files_that_servers_refuse_are_named_with_the_reason(root):
    put(root)
    reasons = {
        str(put(root, triton="3.5.1")): "made for triton 3.5.1, this is 3.6.0.",
        str(put_gemm(root, engine="vllm")): "made for vllm, this is sglang.",
        str(put_gemm(root, CHANNEL)): "sglang 0.5.16 asks for no file for such a GEMM.",
    }
    broken = root / "attention" / "triton_3_6_0" / "broken.json"
    broken.write_text("{}")
    reasons[str(broken)] = "its format is None; this version of the tuner reads 1 and 2."
    code, report = checked(root)
    assert (code, refused(report)) == (1, reasons)


def test_one_named_file_is_judged_as_one_below_a_folder_is(root):
    assert checked(put(root))[0] == 0
    path = put(root, triton="3.5.1")
    code, report = checked(path)
    assert (code, refused(report).keys()) == (1, {str(path)})


def test_a_file_of_another_version_counts_if_its_kernels_are_the_same(root):
    hashed = lift_attention(find_engine("sglang==0.5.23")).hash
    put(root, triton="3.8.0", kernel_hash=hashed)
    assert checked(root, engine="sglang==0.5.23")[0] == 0
    path = put(root, triton="3.8.0")
    code, report = checked(root, engine="sglang==0.5.23")
    assert code == 1
    assert "whose kernels are not those of 0.5.23" in refused(report)[str(path)]


def test_a_file_of_other_kernels_is_refused_under_the_same_version_too(root):
    path = put(root, kernel_hash="a fork's")
    code, report = checked(root)
    assert code == 1
    assert "whose kernels are not those of 0.5.16" in refused(report)[str(path)]


def test_a_folder_of_many_files_lifts_the_kernels_once(root, monkeypatch):
    lifted = []

    def lifting(engine, family, platform):
        lifted.append((family, platform))
        return kernel_hash(engine, family, platform)

    monkeypatch.setattr(delivery, "_FACTS", {})
    monkeypatch.setattr(delivery, "kernel_hash", lifting)
    for columns in range(128, 1408, 128):
        put_gemm(root, FP8.replace("N=2112", f"N={columns}"))
    assert checked(root)[0] == 0
    assert lifted == [("dense_gemm", CUDA), ("dense_gemm", HIP)]


@pytest.mark.parametrize("hip", [None, "6.4"])
@pytest.mark.parametrize(
    ("name", "version"), [("sglang", "0.5.16"), ("sglang", "0.5.23"), ("vllm", "0.33.0")]
)
def test_servers_on_amd_compare_files_with_the_kernels_of_amd(name, version, hip, monkeypatch):
    """A line of gated delta nets in sglang differs, so their hashes do."""
    engine = find_engine(f"{name}=={version}")
    package = ModuleType(name)
    package.__version__, package.__path__ = version, [str(engine.root)]
    monkeypatch.setitem(sys.modules, name, package)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "AMD Instinct MI300X")
    monkeypatch.setattr(hooks, "is_deterministic", lambda: False)
    facts = (sglang_scan if name == "sglang" else vllm_scan)._facts("gated_delta")
    cuda, amd = (kernel_hash(engine, "gated_delta", platform) for platform in (CUDA, HIP))
    assert (cuda == amd) == (name == "vllm")
    assert facts.kernels == ((amd if hip else cuda,), "")
    assert server_facts(engine, "gated_delta", None).kernels == ([cuda, amd], "")


def test_a_release_without_plugins_takes_none(root):
    path = put(root, engine_version="0.5.2", triton="3.4.0")
    code, report = checked(root, engine="sglang==0.5.2")
    assert (code, refused(report)) == (
        1,
        {str(path): "sglang 0.5.2 loads no plugins, and attention files need one."},
    )


def test_files_that_are_compiled_have_a_report_of_their_own(root, compile_cache):
    folder = root / "configs" / "triton_3_6_0"
    folder.mkdir(parents=True)
    name = "E=256,N=64,device_name=NVIDIA_H200,dtype=fp8_w8a8.json"
    (folder / name).write_text(json.dumps({"64": dict(TILE)}))
    put_gemm(root)
    code, report = checked(root)
    compiled, plugin = report["reports"]
    assert (code, bool(compiled["entries"]), plugin["entries"]) == (0, True, [])

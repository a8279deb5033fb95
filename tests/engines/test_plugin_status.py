"""`tuner status`: what a server would use, without one and without a GPU."""

from __future__ import annotations

import json

import plugin_cases
import pytest
from gemm_cases import tile
from plugin_cases import attention_file, gemm_file
from typer.testing import CliRunner

from tuner.bindings.sglang.attention.binding import lift_attention
from tuner.bindings.sglang.attention.status import attention_status
from tuner.bindings.sglang.plugin.files import AttentionEntry
from tuner.bindings.sglang.plugin.splits import SplitsRow, SplitsTable
from tuner.bindings.sglang.status import server_status
from tuner.cli.app import app
from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.export.presence import triton_of
from tuner.families.attention.problem import Stage
from tuner.families.dense_gemm.engine import gemm_engine
from tuner.families.dense_gemm.problem import parse_dense_gemm
from tuner.problems.points import Config
from tuner.problems.registry import parse_problem
from tuner.problems.results import Status

EXTEND = "extend_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16"
GQA = "decode_attention:q_heads=32,kv_heads=8,Lq=128,Lv=128,dtype=bfloat16,kv_splits="
MLA = "decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16,kv_splits="
FLAG = "--triton-attention-num-kv-splits"
TRITON = "3.6.0"  # of this checkout
VARIABLES = ("TUNER_ATTENTION_CONFIG_DIR", "TUNER_GEMM_CONFIG_DIR", "SGLANG_MOE_CONFIG_DIR")
FP8 = "block_gemm:N=2112,K=7168,dtype=fp8_w8a8,block=128x128"
CHANNEL = "channel_gemm:N=2112,K=7168,dtype=fp8_w8a8"
TILE = tile(16, 64, 128, group=8, stages=4)


@pytest.fixture(autouse=True)
def _installed(monkeypatch, tmp_path):
    """The plugin is known to this Python, as `pip install` makes it known."""
    info = tmp_path / "installed" / "engine_tuner_here-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: engine-tuner-here\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\ntuner_attention = tuner.bindings.sglang.plugin:register\n"
    )
    monkeypatch.syspath_prepend(str(info.parent))
    for variable in (*VARIABLES, "SGLANG_PLUGINS"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


def put(root, spec, **changes):
    problem = parse_problem(spec)
    decode = {"BLOCK_N": 32, "BLOCK_H": 16, "num_warps": 4, "num_stages": 3}
    blocks = {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}
    part = problem.parts[0]
    config = Config(decode if part is Stage.DECODE else blocks)
    entries = [AttentionEntry(part, 4, 1, config, Status.OK, 50_000)]
    return plugin_cases.put(root, attention_file(problem, entries, **changes))


def put_gemm(root, spec=FP8, **changes):
    problem = parse_dense_gemm(spec)
    one = Config({k: v for k, v in TILE.items() if problem.block or k != "GROUP_SIZE_M"})
    return plugin_cases.put(root, gemm_file(problem, {1: one, 64: one}, **changes))


def run(*args):
    return CliRunner().invoke(app, ["status", *map(str, args)])


def asked(root, *args, device="H200", engine="sglang==0.5.16"):
    done = run("--dir", root, "--device", device, "--engine", engine, "--json", *args)
    return done.exit_code, json.loads(done.stdout)


def text_of(root):
    return run("--dir", root, "--device", "H200", "--engine", "sglang==0.5.16").stdout


def test_a_phase_without_a_file_is_named_beside_one_that_has_one(root):
    engine, device = find_engine("sglang==0.5.16"), find_device("H200")
    put(root, EXTEND, triton="3.5.1")
    assert attention_status(engine, device, root, {}).without_file() == []  # none is used
    put(root, EXTEND)
    alone = attention_status(engine, device, root, {})
    assert alone.without_file() == alone.as_json()["without_file"] == ["decode"]
    assert "decode: no file; sglang's own constants run" in alone.as_text()
    put(root, GQA + "8")
    both = attention_status(engine, device, root, {})
    assert both.without_file() == []
    assert "no file" not in both.as_text()


def test_files_of_both_families_are_shown(root):
    path, other = put(root, EXTEND), put_gemm(root)
    code, report = asked(root)
    assert (code, report["trouble"]) == (0, None)
    attention, gemm = report["files"]
    assert attention["used"] and attention["reason"] is None and attention["waits"] == []
    fields = ("family", "path", "problem", "entries", "used")
    assert [attention[f] for f in fields] == ["attention", str(path), EXTEND, 1, True]
    assert [gemm[f] for f in fields] == ["dense_gemm", str(other), FP8, 2, True]
    variables = ("TUNER_ATTENTION_CONFIG_DIR", "TUNER_GEMM_CONFIG_DIR")
    assert report["environment"] == dict.fromkeys(variables, str(root))
    assert report["server_flags"] == {"--attention-backend": "triton"}
    assert report["gemm"] == {"variable": None, "root": str(root), "trouble": None}
    text = text_of(root)
    for words in (
        "extend 16/1 576/512 bfloat16        1  used",
        "2112x7168 fp8_w8a8 128x128        2  used",
        "used by servers that run with: --attention-backend triton",
        *(f"export {name}={root}" for name in variables),
    ):
        assert words in text


def test_gemm_files_alone_are_enough(root):
    put_gemm(root)
    assert asked(root)[0] == 0
    code, report = asked(root, device="L40S")
    assert (code, report["server_flags"], report["environment"]) == (1, {}, {})


def test_gemm_files_that_are_refused(root):
    put_gemm(root, device="NVIDIA_L40S")
    put_gemm(root, triton="3.5.1")
    put_gemm(root, CHANNEL)
    (root / "gemm" / "triton_3_6_0" / "broken.json").write_text("{")
    code, report = asked(root)
    assert code == 1
    assert {file["reason"] for file in report["files"]} == {
        "made for NVIDIA_L40S, this is NVIDIA_H200",
        "made for triton 3.5.1, this is 3.6.0",
        "sglang 0.5.16 asks for no file for such a GEMM",
        "not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    }
    # The newest release reads files for channels.
    same = gemm_engine(find_engine("sglang==0.5.23")).lift().hash
    put_gemm(root, CHANNEL, triton="3.8.0", kernel_hash=same)
    used = [file["used"] for file in asked(root, engine="sglang==0.5.23")[1]["files"]]
    assert used.count(True) == 1


@pytest.mark.parametrize("variable", VARIABLES)
def test_the_environments_folder_needs_no_variable(root, variable, monkeypatch):
    put(root, EXTEND)
    put_gemm(root)
    monkeypatch.setenv(variable, str(root))
    report = server_status(find_engine("sglang==0.5.16"), None, None, {variable: str(root)})
    assert report.ok
    found = json.loads(run("--device", "H200", "--engine", "sglang==0.5.16", "--json").stdout)
    assert found["environment"] == {}
    if variable != "TUNER_GEMM_CONFIG_DIR":
        assert (found["variable"], found["root"]) == (variable, str(root))
    if variable != "TUNER_ATTENTION_CONFIG_DIR":
        assert (report.gemm.variable, report.gemm.root) == (variable, root)
        lines = [line for line in report.as_text().splitlines() if "2112x7168" in line]
        (row,) = [line for line in lines if "waits for the GPU" in line]
        assert " pending " in row and " used " not in row


def test_files_are_compared_with_the_triton_that_the_release_runs(root, monkeypatch):
    """It is not the one installed beside this program."""
    engine = find_engine("sglang==0.5.23")
    hashed = gemm_engine(engine).lift().hash
    put_gemm(root, triton="3.8.0", engine_version="0.5.23", kernel_hash=hashed)
    code, report = asked(root, engine="sglang==0.5.23")
    assert (code, report["triton"], report["files"][0]["used"]) == (0, "3.8.0", True)
    put_gemm(root, triton=TRITON, engine_version="0.5.23", kernel_hash=hashed)
    _, report = asked(root, engine="sglang==0.5.23")
    assert [f["reason"] for f in report["files"]] == ["made for triton 3.6.0, this is 3.8.0", None]
    monkeypatch.setattr("tuner.export.presence.engine_triton", lambda engine: None)
    assert triton_of(engine) == TRITON


def test_files_that_servers_load_without_the_plugin_are_not_called_none(root):
    folder = root / "configs" / "triton_3_6_0"
    for path in (folder, root / "provenance" / "configs" / "triton_3_6_0"):
        path.mkdir(parents=True)
        (path / "E=256,N=64,device_name=NVIDIA_H200,dtype=fp8_w8a8.json").write_text("{}")
    put_gemm(root)
    done = run("--dir", root, "--device", "H200", "--engine", "sglang==0.5.16")
    assert done.exit_code == 0
    assert f"1 other config files under {root}: servers load them without the" in done.stderr
    assert f"`tuner check {root}`" in " ".join(done.stderr.split())


def test_a_sglang_without_plugins_is_told_though_there_are_no_files():
    done = run("--engine", "sglang==0.4.4")
    assert done.exit_code == 1
    assert "0.4.4 has no plugins" in " ".join(done.stdout.split())


def test_versions_without_plugins_are_refused_honestly(root):
    put(root, EXTEND, engine_version="0.5.2", triton="3.4.0")
    put_gemm(root, engine_version="0.5.2", triton="3.4.0")
    code, report = asked(root, engine="sglang==0.5.2")
    assert code == 1
    assert report["trouble"].startswith("sglang 0.5.2 has no plugins")
    assert report["files"][0]["reason"] == report["gemm"]["trouble"] == report["trouble"]


def test_without_files_there_is_nothing_to_fail(root):
    done = run("--device", "H200", "--engine", "sglang==0.5.16")
    assert done.exit_code == 0
    assert "no attention files: set TUNER_ATTENTION_CONFIG_DIR" in done.stdout
    root.mkdir()
    code, report = asked(root)
    assert (code, report["files"], report["server_flags"]) == (0, [], {})


def test_one_usable_file_among_others_is_enough(root):
    put(root, EXTEND)
    put(root, EXTEND, device="NVIDIA_L40S")
    put(root, EXTEND, triton="3.5.1")
    (root / "attention" / "triton_3_6_0" / "broken.json").write_text("{}")
    code, report = asked(root)
    assert code == 0
    assert [f["reason"] for f in report["files"]] == [
        "made for triton 3.5.1, this is 3.6.0",
        "its format is None; this version of the tuner reads 1 and 2",
        None,
        "made for NVIDIA_L40S, this is NVIDIA_H200",
    ]


def test_another_version_counts_where_its_kernels_are_the_same(root):
    hashed = lift_attention(find_engine("sglang==0.5.23")).hash
    put(root, EXTEND, triton="3.8.0", kernel_hash=hashed)
    assert asked(root, engine="sglang==0.5.23")[0] == 0
    put(root, EXTEND, triton=triton_of(find_engine("sglang==0.5.12")), kernel_hash=hashed)
    code, report = asked(root, engine="sglang==0.5.12")
    assert code == 1
    assert "whose kernels are not those of 0.5.12" in report["files"][0]["reason"]


def test_a_plugin_that_no_server_would_load(root, monkeypatch):
    put(root, EXTEND)
    monkeypatch.setenv("SGLANG_PLUGINS", "other, tuner_attention")
    assert asked(root)[0] == 0
    monkeypatch.setenv("SGLANG_PLUGINS", "other")
    code, report = asked(root)
    assert (code, report["trouble"]) == (1, "SGLANG_PLUGINS leaves out tuner_attention")
    monkeypatch.setattr("sys.path", [])  # where distributions are looked for
    unknown = attention_status(find_engine("sglang==0.5.16"), find_device("H200"), root, {})
    assert not unknown.ok
    assert unknown.trouble.startswith("this Python does not know the plugin")


def test_without_a_gpu_its_checks_wait(root):
    put(root, EXTEND)
    put(root, f"{MLA}8")
    report = attention_status(find_engine("sglang==0.5.16"), None, root, {})
    assert report.ok
    assert [v.waits for v in report.checks] == [("the GPU (made for NVIDIA_H200)",)] * 2
    assert "waits for the GPU (made for NVIDIA_H200)" in report.as_text()


@pytest.mark.parametrize(("splits", "used"), [(128, False), (256, True)])
def test_latent_attention_is_split_by_the_gpu(root, splits, used):
    put(root, f"{MLA}{splits}")
    code, report = asked(root)
    assert code == (0 if used else 1)
    reason = None if used else f"made for {splits} KV splits, this server launches 256"
    assert report["files"][0]["reason"] == reason
    assert FLAG not in report["server_flags"]


def test_splits_of_other_attention_are_a_flag(root):
    put(root, f"{GQA}8")
    put(root, f"{GQA}16")  # without advice, the engine's own number is used
    report = asked(root)[1]
    used = {f["problem"]: f["used"] for f in report["files"]}
    assert used == {f"{GQA}8": True, f"{GQA}16": False}
    assert report["server_flags"] == {"--attention-backend": "triton"}
    put(root, f"{GQA}16", server_flags={FLAG: 16})
    put(root, f"{MLA}256")
    code, report = asked(root)
    assert (code, report["server_flags"]) == (0, {"--attention-backend": "triton", FLAG: 16})
    assert {f["problem"]: f["reason"] for f in report["files"]} == {
        f"{GQA}8": "made for 8 KV splits, this server launches 16",
        f"{GQA}16": None,
        f"{MLA}256": None,
    }


def test_a_table_of_splits_needs_no_flag(root):
    rows = (SplitsRow(4, 64, ((1024, 8),)),)
    put(root, GQA.removesuffix(",kv_splits="), splits=SplitsTable(rows))
    put(root, f"{GQA}8")
    code, report = asked(root)
    assert (code, report["server_flags"]) == (0, {"--attention-backend": "triton"})
    assert [f["reason"] for f in report["files"]] == [None, None]
    assert "chooses up to 64 KV splits" in text_of(root)


def test_models_may_ask_for_different_splits(root):
    other = GQA.replace("q_heads=32", "q_heads=64")
    put(root, f"{GQA}8", server_flags={FLAG: 8})
    put(root, f"{other}16", server_flags={FLAG: 16})
    code, report = asked(root)
    assert (code, report["server_flags"]) == (0, {"--attention-backend": "triton"})
    flags = {f["problem"]: f["server_flags"][FLAG] for f in report["files"]}
    assert flags == {f"{GQA}8": 8, f"{other}16": 16}
    assert all(f"used      with {FLAG} {number}" in text_of(root) for number in (8, 16))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--device", "H20O"], "did you mean"),
        (["--device", "H200", "--engine", "sglang==0.5.17"], "no sglang==0.5.17 here"),
        (["--device", "H200", "--dir", "/nowhere/at/all"], "/nowhere/at/all is not a folder"),
        (["--device", "H200"], "TUNER_ATTENTION_CONFIG_DIR names /no/such, which is not a folder"),
    ],
)
def test_bad_input(args, says, monkeypatch):
    if says.startswith("TUNER"):
        monkeypatch.setenv("TUNER_ATTENTION_CONFIG_DIR", "/no/such")
    done = run(*args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert says in done.stderr

"""Load proof: the messages come out of the real loaders, called with real config folders."""

from __future__ import annotations

import ast
import json
import logging
import os
import types
import typing
from collections.abc import Callable
from pathlib import Path

import pytest
from draws import times
from hypothesis import given
from hypothesis import strategies as st
from log_lines import parse_log
from real_sglang import package

from tuner.deploy.load_proof import LoadProof, prove_loads, render_proof
from tuner.deploy.load_proof.deployed import Deployed
from tuner.deploy.load_proof.proof import LoadOutcome
from tuner.errors import UnreadableLog

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "tests/data/cluster/logs"
KEY = "E=8,N=64,device_name=NVIDIA_L40S,dtype=int8_w8a8,per_channel_quant=True"
VERSIONS = ["0.4.4", "0.5.2", "0.5.12", "0.5.16", "0.5.23"]
WITH_DOWN = ["0.5.12", "0.5.16", "0.5.23"]


def loader(version: str, folder: Path, lines: list[str]) -> Callable[..., object]:
    """The release's own `get_moe_configs`, lifted out, with its records appended to `lines`."""
    layers = package(version) / "srt/layers/moe"
    places = [
        layers / "moe_runner/triton_utils/fused_moe_triton_config.py",
        layers / "fused_moe_triton/fused_moe_triton_config.py",
        layers / "fused_moe_triton/fused_moe.py",
    ]
    source = next((p for p in places if p.is_file()), None)
    assert source, f"sglang {version} keeps its loader elsewhere"
    wanted = [
        node
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "get_moe_configs"
    ]
    logger = logging.Logger("sglang")
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(  # type: ignore[method-assign]
        f"[2026-11-01 10:00:00 TP3] {record.getMessage()}"
    )
    logger.addHandler(handler)
    off = types.SimpleNamespace(
        enable_deterministic_inference=False,
        deterministic=types.SimpleNamespace(enable_deterministic_inference=False),
    )
    names = {
        **vars(typing),
        "functools": types.SimpleNamespace(lru_cache=lambda f: f),
        "json": json,
        "os": os,
        "logger": logger,
        "triton": types.SimpleNamespace(__version__="3.6.0"),
        "get_global_server_args": lambda: off,
        "get_server_args": lambda: off,
        "get_exec": lambda: off,
        "get_config_file_name": lambda *a, down_moe=False, **k: (
            f"{KEY}{'_down' if down_moe else ''}.json"
        ),
        "__file__": str(folder / "loader.py"),
    }
    code = compile(ast.Module(wanted, []), str(source), "exec")
    exec(code, names)  # noqa: S102 - the release's own function
    return names["get_moe_configs"]  # type: ignore[return-value]


def ask(version: str, folder: Path, **arguments: object) -> tuple[LoadProof, list[str]]:
    lines: list[str] = []
    loader(version, folder, lines)(8, 64, "int8_w8a8", **arguments)
    return parse_log(lines), lines


def place(folder: Path, version: str, triton: str = "3_6_0", suffix: str = "") -> Path:
    """Put a config file where this release looks for it."""
    configs = folder / "configs"
    if version != "0.4.4":
        configs = configs / f"triton_{triton}"
    configs.mkdir(parents=True, exist_ok=True)
    path = configs / f"{KEY}{suffix}.json"
    path.write_text(json.dumps({"1": {"BLOCK_SIZE_M": 16}}))
    sidecar = folder / "provenance" / path.relative_to(folder / "configs")
    sidecar.parent.mkdir(parents=True, exist_ok=True)
    sidecar.write_text(json.dumps({"entries": {"1": {"status": "ok"}}}))
    return path


@pytest.mark.parametrize("version", VERSIONS)
def test_a_file_that_is_there_and_one_that_is_not(version: str, tmp_path: Path) -> None:
    path = place(tmp_path, version)
    proof, _ = ask(version, tmp_path)
    assert proof.ok
    (load,) = proof.loads
    assert (load.key, load.outcome, load.used) == (KEY, LoadOutcome.LOADED, str(path))
    assert load.ranks == ("TP3",)
    assert load.triton == ("" if version == "0.4.4" else "3.6.0")
    path.unlink()
    proof, _ = ask(version, tmp_path)
    assert not proof.ok
    (load,) = proof.loads
    assert (load.key, load.outcome, load.used) == (KEY, LoadOutcome.DEFAULT, "")
    assert load.wanted[0].endswith(f"{KEY}.json")


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_a_file_of_another_triton(version: str, tmp_path: Path) -> None:
    path = place(tmp_path, version, triton="3_2_0")
    proof, _ = ask(version, tmp_path)
    assert not proof.ok
    (load,) = proof.loads
    assert (load.key, load.outcome, load.triton) == (KEY, LoadOutcome.FALLBACK, "3.2.0")
    assert load.used == str(path)
    assert "triton_3_6_0" in load.wanted[0]


@pytest.mark.parametrize("version", WITH_DOWN)
def test_files_of_both_gemms(version: str, tmp_path: Path) -> None:
    down = f"{KEY}_down"
    up_file = place(tmp_path, version)
    proof, lines = ask(version, tmp_path, down_moe=True)
    found = [x.outcome for x in proof.loads if x.key == down]
    assert (found, proof.ok) == ([LoadOutcome.REUSED], False), lines
    up_file.unlink()
    if version != WITH_DOWN[0]:
        proof, _ = ask(version, tmp_path, down_moe=True)
        outcomes = {x.key: x.outcome for x in proof.loads}
        assert outcomes == dict.fromkeys((KEY, down), LoadOutcome.DEFAULT)
    place(tmp_path, version, suffix="_down")
    proof, _ = ask(version, tmp_path, down_moe=True)
    assert [(x.key, x.outcome) for x in proof.loads] == [(down, LoadOutcome.LOADED)]


def logged(version: str, relative: str, words: str) -> str:
    """The template of a message in a release's source, so that ours is not a copy of our own."""
    tree = ast.parse((package(version) / relative).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and words in node.value:
            return node.value
    raise AssertionError(f"no message with {words!r} in sglang {version}")


@pytest.mark.parametrize("version", ["0.5.16", "0.5.23"])
def test_an_override_of_block_size_m(version: str) -> None:
    path = "srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py"
    text = logged(version, path, "does not match up config")
    proof = parse_log([text % (64, 16, 128)] * 2)
    (override,) = proof.overrides
    assert (override.batch_size, override.down_block_m, override.up_block_m) == (128, 64, 16)
    assert "M=128: down BLOCK_SIZE_M 64 replaced by 16" in proof.problems()


@pytest.mark.parametrize("version", WITH_DOWN)
def test_the_plugin_s_hooks(version: str) -> None:
    path = "srt/plugins/hook_registry.py"
    applied = logged(version, path, "Applied %d hook(s)")
    failed = logged(version, path, "Failed to apply hooks to %s")
    target = "sglang.srt.layers.attention.triton_ops.extend_attention.extend_attention_fwd"
    proof = parse_log([applied % (1, target, "tuner"), failed % "other.target"])
    assert [(h.target, h.count) for h in proof.hooks] == [(target, 1), ("other.target", 0)]
    assert "hook on other.target failed" in proof.problems()
    assert "from tuner" in render_proof(proof)
    assert "plugin" not in render_proof(parse_log([]))


def test_vllm_lists_every_place_it_looked_at() -> None:
    name = "E=256,N=128,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128,128].json"
    line = (
        "(Worker_TP1 pid=812) WARNING 11-01 10:00:00 [fused_moe.py:886] Using default MoE config. "
        "Performance might be sub-optimal! Config file not found at "
        f"/tuned/{name}, /usr/lib/vllm/configs/{name}"
    )
    (load,) = parse_log([line]).loads
    assert load.wanted == (f"/tuned/{name}", f"/usr/lib/vllm/configs/{name}")
    assert load.key == name.removesuffix(".json")
    assert load.ranks == ("Worker_TP1 pid=812",)
    older = line.replace("at /tuned", "at ['/tuned").replace(", /usr", "', '/usr") + "']"
    assert parse_log([older]).loads[0].wanted == load.wanted


def test_vllm_loads() -> None:
    line = (
        "INFO 11-01 10:00:00 [fused_moe.py:875] Using configuration from "
        "/tuned/E=256,N=128,device_name=NVIDIA_H20.json for MoE layer."
    )
    folder = Deployed({"E=256,N=128,device_name=NVIDIA_H20.json": {"ok": 18}}, root="/tuned")
    proof = parse_log([line], folder)
    assert proof.ok
    assert proof.loads[0].used == "/tuned/E=256,N=128,device_name=NVIDIA_H20.json"


def test_paths_with_spaces_and_brackets() -> None:
    name = "E=8,N=64,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128, 128].json"
    (load,) = parse_log([f"Using MoE kernel config from /my models/{name}."]).loads
    assert load.used == f"/my models/{name}"
    assert load.key == name.removesuffix(".json")


def test_ranks_that_disagree_are_named(tmp_path: Path) -> None:
    place(tmp_path, "0.5.16")
    _, good = ask("0.5.16", tmp_path)
    place(tmp_path, "0.5.16").unlink()
    _, bad = ask("0.5.16", tmp_path)
    proof = parse_log([*good, bad[0].replace("TP3", "TP5")])
    assert f"{KEY}: ranks disagree" in proof.problems()


def test_the_user_s_own_warning() -> None:
    proof = prove_loads([LOGS / "l40s-missing-config.log"])
    (load,) = proof.loads
    assert load.key == "E=256,N=64,device_name=NVIDIA_L40S,dtype=int8_w8a8"
    assert load.outcome is LoadOutcome.DEFAULT
    assert "not as tuned: 1 problem\n" in render_proof(proof)
    value = json.loads(json.dumps(proof.as_dict()))
    assert (value["loads"][0]["outcome"], value["ok"]) == ("default", False)


def test_a_log_without_any_message_proves_nothing() -> None:
    proof = prove_loads([LOGS / "l40s-out-of-resources.log"])
    assert proof.loads == ()
    assert not proof.ok
    assert "no config file's message" in render_proof(proof)
    assert render_proof(proof).endswith("not as tuned: 1 problem\n")


def test_an_unreadable_log_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(UnreadableLog, match="absent.log"):
        prove_loads([tmp_path / "absent.log"])
    with pytest.raises(UnreadableLog):
        prove_loads([tmp_path])


_WORDS = [
    "Using MoE kernel config from ",
    "Config file not found at ",
    ". Fallback to triton version ",
    " and use MoE kernel config from ",
    "Using default MoE kernel config. ",
    "/a/E=8,N=64.json",
    "['/b.json', '/c.json']",
    "Applied 1 hook(s) to x (from: y)",
    "down_moe config BLOCK_SIZE_M=" + "9" * 5000,
    "NCCL INFO NET/IB : Using [0]mlx5_1:1/RoCE; OOB eth0:1<0>",
    "NCCL INFO via NET/IB/0",
    "[2026 TP0] ",
    ".",
    # The plugin's lines.
    "tuner attention: ",
    "tuner gemm: ",
    "refused /a/b.json: ",
    "extend 16/1 576/512 bfloat16 from /a/triton_3_6_0/c.json",
    "2112x7168 fp8_w8a8 128x128 from /a/triton_3_6_0/c.json",
    " (predicted)",
    "; ",
    "no file applies",
    "_fwd_kernel (1, 2): not with {}: x",
    "sglang has no x",
]


@times(4)
@given(st.lists(st.one_of(st.sampled_from(_WORDS), st.text(max_size=20)), max_size=12))
def test_no_log_gives_a_traceback(words: list[str]) -> None:
    proof = parse_log("".join(words).splitlines())
    json.dumps(proof.as_dict())
    assert render_proof(proof)

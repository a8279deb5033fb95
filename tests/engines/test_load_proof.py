"""Load proof: the messages come out of the real loaders, called with real config folders."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from bundle_cases import CASES, build, built, example, winners
from bundle_cases import place as unpacked
from draws import times
from hypothesis import given
from hypothesis import strategies as st
from log_lines import parse_log
from real_sglang import RELEASES, VERSIONS, RealSGLang, package
from tiers import only
from typer.testing import CliRunner, Result

from tuner.cli.commands import app
from tuner.deploy.cluster import Parallel
from tuner.deploy.load_proof import LoadProof, prove_loads, read_deployed, render_proof
from tuner.deploy.load_proof.deployed import Deployed, FileOrigin
from tuner.deploy.load_proof.proof import LoadOutcome
from tuner.deploy.load_proof.ranks import numbers_of
from tuner.engines.engine import find_engine
from tuner.errors import BadInput, BundleRefused, UnreadableLog
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.problems.dtypes import Dtype
from tuner.problems.registry import parse_problem

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "tests/data/cluster/logs"
DEVICE = "NVIDIA_L40S"
LAYER = FusedMoe(8, 64, 4096, 1, Dtype.INT8_W8A8, per_channel_quant=True)
WITH_DOWN = ["0.5.12", "0.5.16", "0.5.23"]


@cache
def key(version: str, gemm: Gemm = Gemm.UP) -> str:
    """The name of the file that a release looks for, without its end."""
    return RealSGLang(version).file_name(LAYER, DEVICE, gemm).removesuffix(".json")


def ask(version: str, folder: Path, gemm: Gemm = Gemm.UP) -> tuple[LoadProof, list[str]]:
    said = RealSGLang(version).said(LAYER, DEVICE, gemm, "3.6.0", folder)
    lines = [f"[2026-11-01 10:00:00 TP3] {line}" for line in said]
    return parse_log(lines), lines


def place(folder: Path, version: str, triton: str = "3_6_0", gemm: Gemm = Gemm.UP) -> Path:
    """Put a config file where this release looks for it."""
    configs = folder / "configs"
    if version != "0.4.4":
        configs = configs / f"triton_{triton}"
    configs.mkdir(parents=True, exist_ok=True)
    path = configs / f"{key(version, gemm)}.json"
    path.write_text(json.dumps({"1": {"BLOCK_SIZE_M": 16}}))
    sidecar = folder / "provenance" / path.relative_to(folder / "configs")
    sidecar.parent.mkdir(parents=True, exist_ok=True)
    sidecar.write_text(json.dumps({"entries": {"1": {"status": "ok"}}}))
    return path


@pytest.mark.parametrize("version", RELEASES)
def test_a_file_that_is_there_and_one_that_is_not(version: str, tmp_path: Path) -> None:
    path = place(tmp_path, version)
    proof, _ = ask(version, tmp_path)
    assert proof.ok
    (load,) = proof.loads
    assert (load.name, load.outcome, load.used) == (key(version), LoadOutcome.LOADED, str(path))
    assert load.ranks == ("TP3",)
    assert load.triton == ("" if version == "0.4.4" else "3.6.0")
    path.unlink()
    proof, _ = ask(version, tmp_path)
    assert not proof.ok
    (load,) = proof.loads
    assert (load.name, load.outcome, load.used) == (key(version), LoadOutcome.DEFAULT, "")
    assert load.wanted[0].endswith(f"{key(version)}.json")


@pytest.mark.parametrize("version", only(["0.5.2", "0.5.23"], VERSIONS[1:]))
def test_a_file_of_another_triton(version: str, tmp_path: Path) -> None:
    path = place(tmp_path, version, triton="3_2_0")
    proof, _ = ask(version, tmp_path)
    assert not proof.ok
    (load,) = proof.loads
    assert (load.name, load.outcome, load.triton) == (key(version), LoadOutcome.FALLBACK, "3.2.0")
    assert load.used == str(path)
    assert "triton_3_6_0" in load.wanted[0]


@pytest.mark.parametrize("version", only(["0.5.12", "0.5.23"], WITH_DOWN))
def test_files_of_both_gemms(version: str, tmp_path: Path) -> None:
    down = key(version, Gemm.DOWN)
    up_file = place(tmp_path, version)
    proof, lines = ask(version, tmp_path, Gemm.DOWN)
    found = [x.outcome for x in proof.loads if x.name == down]
    assert (found, proof.ok) == ([LoadOutcome.REUSED], False), lines
    up_file.unlink()
    if version != WITH_DOWN[0]:
        proof, _ = ask(version, tmp_path, Gemm.DOWN)
        outcomes = {x.name: x.outcome for x in proof.loads}
        assert outcomes == dict.fromkeys((key(version), down), LoadOutcome.DEFAULT)
    place(tmp_path, version, gemm=Gemm.DOWN)
    proof, _ = ask(version, tmp_path, Gemm.DOWN)
    assert [(x.name, x.outcome) for x in proof.loads] == [(down, LoadOutcome.LOADED)]


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
    assert load.name == name.removesuffix(".json")
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
    assert load.name == name.removesuffix(".json")


def test_ranks_that_disagree_are_named(tmp_path: Path) -> None:
    place(tmp_path, "0.5.16")
    _, good = ask("0.5.16", tmp_path)
    place(tmp_path, "0.5.16").unlink()
    _, bad = ask("0.5.16", tmp_path)
    proof = parse_log([*good, bad[0].replace("TP3", "TP5")])
    assert f"{key('0.5.16')}: ranks disagree" in proof.problems()


def test_the_user_s_own_warning() -> None:
    proof = prove_loads([LOGS / "l40s-missing-config.log"])
    (load,) = proof.loads
    assert load.name == "E=256,N=64,device_name=NVIDIA_L40S,dtype=int8_w8a8"
    assert load.outcome is LoadOutcome.DEFAULT
    assert "not as tuned: 1 problem\n" in render_proof(proof)
    value = json.loads(json.dumps(proof.as_dict()))
    assert (value["loads"][0]["outcome"], value["ok"]) == ("default", False)


def test_a_log_without_any_message_proves_nothing() -> None:
    proof = prove_loads([LOGS / "l40s-out-of-resources.log"])
    assert proof.loads == ()
    assert not proof.ok
    assert "no config file's message" in render_proof(proof)
    assert render_proof(proof).endswith("\nnot proven: 1 problem\n")


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


# With a bundle: tuned, shipped and default; RDMA or sockets; ready or not

L40S, H20, RAY = CASES
NAME = "E=257,N=128,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128, 128]"
MOUNTED = "/opt/tuner/engine-configs/configs/triton_3_6_0"
PACKAGE = "/sgl-workspace/sglang/python/sglang/srt/layers/moe/moe_runner/triton_utils/configs"
LOADED = "[2026-11-01 10:00:00 TP{}] Using MoE kernel config from {}/{}.json."
IB = (
    "h20-node01:812:812 [0] NCCL INFO NET/IB : Using [0]mlx5_1:1/RoCE [1]mlx5_2:1/RoCE [RO]; OOB "
    "xgbe0:10.63.65.207<0>"
)
USING = "h20-node01:812:812 [0] NCCL INFO Using network {}"
DIRECT = "h20-node01:812:9 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA"
READY = "[2026-11-01 10:09:00] The server is fired up and ready to roll!"


def tuned_lines(folder: str = MOUNTED, ranks: Iterable[int] = range(16)) -> list[str]:
    """The lines of the up file's ranks, and those of the down file's."""
    return [
        "\n".join(LOADED.format(rank, folder, name) for rank in ranks)
        for name in (NAME, f"{NAME}_down")
    ]


def proved(tmp_path: Path, lines: list[str], archive: bytes = b"") -> LoadProof:
    (tmp_path / "server.log").write_text("\n".join(lines) + "\n")
    path = tmp_path / "bundle.tar.gz"
    path.write_bytes(archive or built(H20).archive)
    return prove_loads([tmp_path / "server.log"], read_deployed(path))


def test_the_whole_launch_as_the_user_looked_at_it(tmp_path: Path) -> None:
    proof = proved(tmp_path, [IB, USING.format("IB"), DIRECT, *tuned_lines(), READY])
    assert proof.ok, proof.problems()
    assert {load.origin for load in proof.loads} == {FileOrigin.TUNED.value}
    text = render_proof(proof)
    assert "entries: 18 predicted" in text
    assert "NET/IB (server.log:2)" in text
    assert "mlx5_1, mlx5_2, control over xgbe0" in text
    assert "1 channels with GPUDirect RDMA, 0 without" in text
    assert "ready           server.log:36" in text
    assert text.endswith("\nas tuned\n")


def test_a_proof_counts_the_ranks(tmp_path: Path) -> None:
    """The bundle's cluster has two nodes of eight ranks."""
    head = [USING.format("IB"), *tuned_lines(ranks=range(8)), READY]
    said = "loaded by 8 of 16 ranks, and no line is of TP8 to TP15: give the logs of all nodes"
    assert proved(tmp_path, head).problems() == [f"{NAME}: {said}", f"{NAME}_down: {said}"]
    one = [USING.format("IB"), *tuned_lines(ranks=[0]), READY]
    assert "1 of 16 ranks, and no line is of TP1 to TP15" in proved(tmp_path, one).problems()[0]
    gap = [USING.format("IB"), *tuned_lines(ranks=[*range(7), *range(8, 16)]), READY]
    assert "15 of 16 ranks, and no line is of TP7:" in proved(tmp_path, gap).problems()[0]
    without = [line.replace(" TP0]", "]") for line in tuned_lines(ranks=[0])]
    proof = proved(tmp_path, [USING.format("IB"), *without, READY])
    assert proof.ok
    assert f"{NAME}: its lines name no rank, so whether all 16 loaded it is open" in proof.notes()


def test_vllm_s_first_rank_of_a_node_speaks_for_the_node(tmp_path: Path) -> None:
    name = built(RAY).compared.bundled[0].removesuffix(".json")
    line = (
        "(Worker_TP{} pid=812) INFO 11-01 10:00:00 [fused_moe.py:1078] Using configuration from "
        f"/opt/tuner/engine-configs/{name}.json for MoE layer."
    )
    lines = [USING.format("IB"), line.format(0), READY]
    (said,) = proved(tmp_path, lines, built(RAY).archive).problems()
    assert "loaded by 8 of 16 ranks, and no line is of TP8 to TP15" in said
    assert proved(tmp_path, [*lines, line.format(8)], built(RAY).archive).ok


def test_replicas_are_counted_too(tmp_path: Path) -> None:
    deployed = Deployed(ranks=16, nodes=2, tp=8, made_for={"engine": "sglang"})
    path = tmp_path / "server.log"
    lines = [LOADED.format(rank, MOUNTED, NAME).replace(" TP", " DP1 TP") for rank in range(8)]
    path.write_text("\n".join(lines))
    (load,) = prove_loads([path], deployed).loads
    assert load.ranks[:2] == ("DP1 TP0", "DP1 TP1")
    assert numbers_of(load.ranks, deployed) == {*range(8, 16)}


def test_stages_are_counted_too(tmp_path: Path) -> None:
    staged = replace(example(H20), parallel=Parallel(tp=8, ep=1, dp=1, pp=2))
    path, log = tmp_path / "bundle.tar.gz", tmp_path / "server.log"
    wanted = [parse_problem(CASES[H20][1])]
    path.write_bytes(build(H20, staged, allow_missing=True, wanted=wanted).archive)
    deployed = replace(read_deployed(path), asked=frozenset())
    assert (deployed.tp, deployed.pp, deployed.ranks, deployed.replicated) == (8, 2, 16, False)
    one = [line.replace(" TP", " PP0 TP") for line in tuned_lines(ranks=range(8))]
    log.write_text("\n".join([USING.format("IB"), *one, READY]))
    said, _ = prove_loads([log], deployed).problems()
    assert "loaded by 8 of 16 ranks, and no line is of PP1 TP0 to PP1 TP7" in said
    both = [*one, *(line.replace("PP0", "PP1") for line in one)]
    log.write_text("\n".join([USING.format("IB"), *both, READY]))
    assert prove_loads([log], deployed).problems() == []


def test_a_cluster_without_rdma_may_use_sockets(tmp_path: Path) -> None:
    tcp = replace(example(H20), environment={"NCCL_IB_DISABLE": "1"})
    archive = build(H20, tcp).archive
    assert proved(tmp_path, [USING.format("Socket"), *tuned_lines(), READY], archive).ok


def test_the_engine_s_own_file_is_not_a_tuned_one(tmp_path: Path) -> None:
    shipped = tuned_lines(f"{PACKAGE}/triton_3_6_0")
    proof = proved(tmp_path, [USING.format("IB"), *shipped, READY])
    assert {load.origin for load in proof.loads} == {FileOrigin.SHIPPED.value}
    assert f"{NAME}: the engine's own file was loaded, not a tuned file" in proof.problems()
    assert "shipped         fused_moe" in render_proof(proof)


def test_a_file_that_the_folder_carries_is_the_engine_s_own(tmp_path: Path) -> None:
    engine = moe_engine(find_engine("sglang==0.5.16"))
    one = next(file.path for file in engine.shipped() if file.path.name != f"{NAME}.json")
    line = LOADED.format(0, f"/opt/tuner/engine-configs/configs/{one.parent.name}", one.stem)
    proof = proved(tmp_path, [USING.format("IB"), line, *tuned_lines(), READY])
    assert proof.loads[0].origin == FileOrigin.SHIPPED.value
    assert proof.ok  # another layer's: nobody tuned it


def test_a_tuned_file_that_no_line_names(tmp_path: Path) -> None:
    proof = proved(tmp_path, [USING.format("IB"), tuned_lines()[0], READY])
    assert proof.problems() == [f"{NAME}_down: in the bundle, but no line says that it was loaded"]


def test_sockets_are_not_rdma(tmp_path: Path) -> None:
    sockets = "h20-node01:812:812 [0] NCCL INFO NET/Socket : Using [0]xgbe0:10.63.65.207<0>"
    proof = proved(tmp_path, [sockets, USING.format("Socket"), *tuned_lines(), READY])
    assert proof.problems() == ["NCCL uses TCP sockets between nodes, not RDMA (server.log:2)"]
    silent = proved(tmp_path, [*tuned_lines(), READY])
    assert silent.problems() == [
        "no line says which network NCCL uses: start the servers with NCCL_DEBUG=INFO"
    ]


def test_a_server_that_is_not_ready(tmp_path: Path) -> None:
    proof = proved(tmp_path, [USING.format("IB"), *tuned_lines()])
    assert proof.problems() == ["no line says that the server is ready"]
    vllm = "(APIServer pid=1) INFO:     Application startup complete."
    assert proved(tmp_path, [USING.format("IB"), *tuned_lines(), vllm]).ok


def test_an_unpacked_bundle_and_an_exported_folder_serve_too(tmp_path: Path) -> None:
    root = unpacked(built(H20), tmp_path / "unpacked")
    here = tuned_lines(str(root / "engine-configs/configs/triton_3_6_0"))
    (tmp_path / "server.log").write_text("\n".join([USING.format("IB"), *here, READY]))
    assert prove_loads([tmp_path / "server.log"], read_deployed(root)).ok
    # Files and their sidecars alone, as `tuner export` writes them.
    shutil.copytree(root / "engine-configs", tmp_path / "configs_out")
    log = tmp_path / "other.log"
    log.write_text("\n".join(tuned_lines(f"{tmp_path}/configs_out/configs/triton_3_6_0")))
    assert prove_loads([log], read_deployed(tmp_path / "configs_out")).ok
    assert prove_loads([log]).ok  # the sidecars are on this machine


# What else lies in the bundle or the folder

OTHER_MODEL = "E=128,N=96,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128, 128]"
OTHER_GPU = NAME.replace("H20", "H100_80GB_HBM3")
STARTS = (
    "[2026-11-01 09:59:00] server_args=ServerArgs(model_path='/models/DeepSeek-R1', tp_size=16, "
    "ep_size=1, dp_size=1, page_size=1, disable_shared_experts_fusion=False)"
)


def full_folder(root: Path) -> Path:
    """An exported folder with the files of H20's DeepSeek-R1, of another model and of H100s."""
    shutil.copytree(unpacked(built(H20), root) / "engine-configs", root / "configs_out")
    spec = CASES[H20][1]
    for name, problem in (
        (OTHER_MODEL, spec.replace("E=257,N=128", "E=128,N=96").replace("128x128", "32x32")),
        (OTHER_GPU, spec),
    ):
        for folder, text in (
            ("configs", '{"1": {}}'),
            ("provenance", json.dumps({"problem": problem, "entries": {"1": {"status": "ok"}}})),
        ):
            path = root / "configs_out" / folder / "triton_3_6_0" / f"{name}.json"
            path.write_text(text)
    return root / "configs_out"


def of_folder(root: Path, lines: list[str]) -> LoadProof:
    (root / "server.log").write_text("\n".join(lines) + "\n")
    return prove_loads([root / "server.log"], read_deployed(root / "configs_out"))


def test_files_of_other_gpus_and_models_are_no_problem(tmp_path: Path) -> None:
    here = tuned_lines(str(full_folder(tmp_path) / "configs/triton_3_6_0"))
    proof = of_folder(tmp_path, [STARTS, *here])
    assert proof.ok, proof.problems()
    assert render_proof(proof).endswith("\nas tuned\n")
    missing = f"{NAME}_down: in the bundle, but no line says that it was loaded"
    assert of_folder(tmp_path, [STARTS, here[0]]).problems() == [missing]


def test_a_log_without_the_model_does_not_tell_what_else_is_asked_for(tmp_path: Path) -> None:
    here = tuned_lines(str(full_folder(tmp_path) / "configs/triton_3_6_0"))
    unknown = (
        f"{OTHER_MODEL}: whether this server asks for it is not known: the log names no model: "
        "give the lines of its start, or its launch command, too"
    )
    proof = of_folder(tmp_path, here)
    assert proof.problems() == [unknown]
    assert render_proof(proof).endswith("\nnot proven: 1 problem\n")
    # The line of one file of a problem proves that the server asks for the other one.
    missing = f"{NAME}_down: in the bundle, but no line says that it was loaded"
    assert of_folder(tmp_path, here[:1]).problems() == [missing, unknown]
    (tmp_path / "command.txt").write_text(
        "python3 -m sglang.launch_server --model-path x/DeepSeek-R1 --tp 16\n"
    )
    files = [tmp_path / "command.txt", tmp_path / "server.log"]
    (tmp_path / "server.log").write_text("\n".join(here))
    assert prove_loads(files, read_deployed(tmp_path / "configs_out")).ok


def test_a_model_of_ones_own_is_known_by_its_config(tmp_path: Path) -> None:
    here = tuned_lines(str(full_folder(tmp_path) / "configs/triton_3_6_0"))
    own = STARTS.replace("/models/DeepSeek-R1", f"{tmp_path}/own")
    (said,) = of_folder(tmp_path, [own, *here]).problems()
    assert said.endswith(f"{tmp_path}/own is no preset: run this where its config.json is")
    config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        **{"n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8},
        **{"moe_intermediate_size": 2048, "hidden_size": 7168, "torch_dtype": "bfloat16"},
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    (tmp_path / "own").mkdir()
    (tmp_path / "own/config.json").write_text(json.dumps(config))
    assert of_folder(tmp_path, [own, *here]).problems() == []
    assert len(of_folder(tmp_path, [own, here[1]]).problems()) == 1


def test_a_server_for_which_nothing_was_tuned_is_not_as_tuned(tmp_path: Path) -> None:
    full_folder(tmp_path)
    name = NAME.replace("H20", "L40S")
    shipped = LOADED.format(0, f"{PACKAGE}/triton_3_6_0", name)
    (said,) = of_folder(tmp_path, [STARTS, shipped]).problems()
    assert said == "the bundle has no tuned file that this server asks for"
    other = STARTS.replace("DeepSeek-R1", "Qwen3-235B-A22B")
    line = shipped.replace("L40S", "H20").replace("E=257", "E=99")
    assert of_folder(tmp_path, [other, line]).problems() == [said]


def test_a_bundle_is_proven_by_what_its_cluster_s_servers_ask_for(tmp_path: Path) -> None:
    own = parse_problem(CASES[H20][1])
    other = replace(own, N=3 * own.N)
    both = [replace(one, problem=each) for each in (own, other) for one in winners(H20)]
    archive = build(H20, of=both, wanted=[own, other]).archive
    rdma = USING.format("IB")
    assert proved(tmp_path, [rdma, *tuned_lines(), READY], archive=archive).ok
    said = proved(tmp_path, [rdma, tuned_lines()[0], READY], archive=archive).problems()
    assert said == [f"{NAME}_down: in the bundle, but no line says that it was loaded"]


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"holds neither MANIFEST\.json nor provenance"):
        read_deployed(tmp_path)
    archive = bytearray(built(H20).archive)
    archive[len(archive) // 2] ^= 1
    (tmp_path / "b.tar.gz").write_bytes(archive)
    with pytest.raises(BundleRefused):
        read_deployed(tmp_path / "b.tar.gz")


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["load-proof", *map(str, arguments)])


def test_the_command_takes_the_bundle_first(tmp_path: Path) -> None:
    archive, log = tmp_path / "b.tar.gz", tmp_path / "server.log"
    archive.write_bytes(built(H20).archive)
    log.write_text("\n".join([USING.format("IB"), *tuned_lines(), READY]))
    assert command(archive, log).exit_code == 0
    assert command(log).exit_code == 1  # nothing tells a tuned file from a shipped one
    alone = command(archive)
    assert alone.exit_code == 2
    assert "give a server's log after" in alone.stderr

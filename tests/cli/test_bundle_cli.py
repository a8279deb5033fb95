"""The commands around a bundle, as a user types them."""

import hashlib
import json
import shutil

import pytest
from bundle_cases import CAPTURES, CASES, ENGINES, EXAMPLES, example
from commands import tuner
from node_shapes import lay, read_shape

L40S, H20, RAY = CASES
BENCH = CAPTURES / "bench"


def one_line(*words: object, code: int) -> str:
    (line,) = tuner(*words, code=code).stderr.splitlines()
    assert line.startswith("tuner: error: ")
    return line


@pytest.mark.usefixtures("bundled_store")
@pytest.mark.parametrize("case", CASES)
def test_a_bundle_is_built_and_its_hash_is_told(case, tmp_path):
    device = CASES[case][0]
    options = ["--device", device, "--cluster", EXAMPLES / f"{case}.toml", "--allow-predicted"]
    options += ["--engine", ENGINES[case][0]]
    result = tuner("bundle", *options)
    path = tmp_path / f"{example(case).name}-NVIDIA_{device}.tar.gz"
    assert result.stdout.startswith(f"{path.name}  ")
    assert "entries were predicted, not measured" in result.stderr
    first = path.read_bytes()
    tuner("bundle", *options)
    assert path.read_bytes() == first
    assert hashlib.sha256(first).hexdigest() == result.stdout.split()[1]


@pytest.mark.usefixtures("bundled_store")
def test_captures_reach_the_scripts(tmp_path):
    nodes = [f"--node={n}={CAPTURES / n}" for n in ("h20-node01", "h20-node02")]
    options = ["--device", "H20", "--cluster", EXAMPLES / f"{RAY}.toml", "--allow-predicted"]
    options += ["--engine", ENGINES[RAY][0]]
    result = tuner("bundle", *options, *nodes, "--out", tmp_path / "b.tar.gz", "--json")
    assert "info: h20-node01: not captured" in result.stderr
    assert not any("is not set" in note for note in json.loads(result.stdout)["notes"])


@pytest.mark.usefixtures("bundled_store")
def test_errors_of_the_nodes_are_an_exit_code_and_the_bundle_is_written(tmp_path):
    folder = tmp_path / "captures"
    shutil.copytree(CAPTURES / "h20-node01", folder)
    links = folder / "ibdev2netdev.txt"
    links.write_text(links.read_text().replace("(Up)", "(Down)"))
    options = ["--device", "H20", "--cluster", EXAMPLES / f"{RAY}.toml", "--allow-predicted"]
    options += ["--engine", ENGINES[RAY][0], f"--node=h20-node01={folder}"]
    options += [f"--node=h20-node02={CAPTURES / 'h20-node02'}"]
    result = tuner("bundle", *options, "--out", tmp_path / "b.tar.gz", code=1)
    assert "error: h20-node01: " in result.stderr
    assert "mend the errors above" in result.stderr
    assert (tmp_path / "b.tar.gz").is_file()


@pytest.mark.usefixtures("bundled_store")
def test_nodes_with_other_cards_than_the_bundle_s_are_errors(tmp_path):
    shape = {**read_shape("no-rdma"), "gpu": "NVIDIA L20"}
    nodes = example(L40S).nodes
    captures = [f"--node={one.name}={lay(shape, tmp_path / one.name)}" for one in nodes]
    options = ["--device", "L40S", "--cluster", EXAMPLES / f"{L40S}.toml", "--allow-predicted"]
    options += ["--engine", ENGINES[L40S][0], "--out", tmp_path / "b.tar.gz"]
    said = tuner("bundle", *options, *captures, code=1).stderr
    assert "error: l40s-01: the bundle is for NVIDIA_L40S, and the node has NVIDIA L20" in said


@pytest.mark.usefixtures("bundled_store")
def test_refusals_are_one_line(tmp_path):
    cluster = ["--cluster", EXAMPLES / f"{L40S}.toml"]
    assert "needs --cluster cluster.toml, and --device or --log" in one_line("bundle", code=2)
    said = one_line("bundle", "--device", "L40S", *cluster, code=1)
    assert "--allow-predicted" in said
    none = one_line("bundle", "--device", "H100", *cluster, "--allow-predicted", code=1)
    assert "no winners for NVIDIA_H100" in none
    tune = f"`tuner tune --cluster {EXAMPLES / L40S}.toml --device NVIDIA_H100_80GB_HBM3`"
    assert tune in none
    assert "did you mean" in one_line("bundle", "--device", "L40X", *cluster, code=2)
    options = ["--device", "L40S", *cluster, "--allow-predicted"]
    assert "'x' is not NAME=DIR" in one_line("bundle", *options, "--node", "x", code=2)
    assert "cannot write to" in one_line("bundle", *options, "--out", "/proc/x/b", code=2)
    assert not list(tmp_path.glob("*.tar.gz"))


@pytest.mark.usefixtures("bundled_store")
def test_a_log_of_the_servers_names_the_gpu_and_what_differs(tmp_path):
    log = tmp_path / "server.log"
    log.write_text(
        "sglang-1  | [2026-11-20 10:00:00] server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-"
        "R1', quantization=None, tp_size=16, ep_size=1)\n"
        "GPU 0: NVIDIA L40S (UUID: GPU-0)\nsglang==0.5.12\n"
    )
    options = ["--cluster", EXAMPLES / f"{L40S}.toml", "--engine", ENGINES[L40S][0]]
    result = tuner("bundle", *options, "--allow-predicted", "--log", log)
    said = " ".join(result.stderr.split())
    assert "note: the log says tp 16 (server.log:1), and the files are for tp 32" in said
    assert "the log says version 0.5.12 (server.log:3), and the files are for version" in said
    assert "the log says device" not in said and "says ep" not in said
    log.write_text("nothing of a GPU\n")
    assert "--device, the GPU as nvidia-smi" in one_line("bundle", *options, "--log", log, code=2)


def test_preflight_takes_the_cluster_in_both_forms(tmp_path):
    nodes = [f"--node={n}={CAPTURES / n}" for n in ("h20-node01", "h20-node02")]
    (tmp_path / "cluster.json").write_text(example(H20).expected().to_json())
    results = [
        tuner("preflight", *nodes, "--cluster", path, "--json")
        for path in (EXAMPLES / f"{H20}.toml", tmp_path / "cluster.json")
    ]
    assert results[0].stdout == results[1].stdout
    proposed = json.loads(results[0].stdout)["nodes"][0]["environment"]
    assert proposed["NCCL_IB_HCA"] == ",".join(f"mlx5_{i}" for i in range(1, 9))


def test_preflight_exits_with_what_it_found(tmp_path):
    result = tuner("preflight", f"--node=l40s-01={CAPTURES / 'l40s-miswired'}", code=1)
    assert "2 errors, 0 warnings" in result.stdout
    tuner("preflight", "--capture", tmp_path / "here")
    assert (tmp_path / "here" / "capture.json").is_file()
    assert "is not NAME=DIR" in one_line("preflight", "--node", "x", code=2)

"""The preflight as one file, run by the system's Python without site packages; and a capture."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.deploy.preflight import build_single_file, capture, render, run_preflight
from tuner.deploy.preflight.capture import hash_folder, read_capture
from tuner.deploy.preflight.network import read_sysfs

DATA = Path(__file__).parents[1] / "data" / "cluster"
H20 = {"h20-node01": DATA / "h20-node01", "h20-node02": DATA / "h20-node02"}
L40S = DATA / "l40s-miswired"


@pytest.fixture(scope="module")
def single_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("single") / "preflight.py"
    build_single_file(path)
    return path


def run_single(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=path.parent)


def test_single_file_says_what_the_package_says(single_file):
    done = run_single(single_file, "--node", f"l40s-01={L40S.resolve()}")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == render(run_preflight({"l40s-01": L40S}))
    pair = [f"--node={name}={folder.resolve()}" for name, folder in H20.items()]
    done = run_single(single_file, *pair, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["nodes"][1]["environment"]["NCCL_IB_GID_INDEX"] == "3"


def test_single_file_checks_the_machine_it_is_on(single_file):
    done = run_single(single_file, "--json")
    assert done.returncode in (0, 1)
    assert len(json.loads(done.stdout)["nodes"]) == 1


def test_single_file_refuses_bad_input_in_one_line(single_file):
    done = run_single(single_file, "--node", "node01")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "NAME=DIR" in done.stderr


def test_capture_notes_missing_tools_and_keeps_no_secrets(tmp_path, monkeypatch):
    tools = tmp_path / "bin"
    tools.mkdir()
    source = (H20["h20-node01"] / "ibdev2netdev.txt").resolve()
    (tools / "ibdev2netdev").write_text(f"#!/bin/sh\nexec /bin/cat {source}\n")
    (tools / "show_gids").write_text("#!/bin/sh\nexit 3\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("NCCL_IB_HCA", "mlx5_1")
    monkeypatch.setenv("HF_TOKEN", "secret")
    configs = tmp_path / "configs"
    configs.mkdir()
    (configs / "a.json").write_text("{}")
    out = tmp_path / "out"
    capture(out, image="an-image", config_dir=str(configs), root=L40S)
    notes = json.loads((out / "capture.json").read_text())["notes"]
    assert notes["ibdev2netdev.txt"] == "ok"
    assert notes["show_gids.txt"] == "exit status 3"
    assert notes["nvidia-smi-q.txt"] == "not installed"
    assert "HF_TOKEN" not in (out / "environment.txt").read_text()
    node = read_capture("a", out)
    assert len(node.ports) == 9
    assert node.environment["NCCL_IB_HCA"] == "mlx5_1"
    assert node.versions["configs"] == hash_folder(configs)
    # The copied tree holds what the original one holds.
    assert node.devices == read_sysfs(L40S / "sys/class/infiniband")[0]


def test_single_file_checks_a_model_s_files(single_file, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    header = b'{"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}'
    data = len(header).to_bytes(8, "little") + header + bytes(8)
    (model / "model.safetensors").write_bytes(data)
    here = str(tmp_path / "here")
    captured = run_single(single_file, "--capture", here, "--model-dir", str(model))
    assert captured.returncode == 0, captured.stderr
    assert json.loads((tmp_path / "here" / "weights.json").read_text())["faults"] == []
    (model / "model.safetensors").write_bytes(data[:-1])
    done = run_single(single_file, "--model-dir", str(model))
    assert done.returncode == 1
    assert "model.safetensors: cut off" in done.stdout

"""The preflight as one file, run by Pythons without site packages; and a capture."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from node_shapes import lay, read_shape

from tuner.deploy.preflight import build_single_file, capture, render, run_preflight
from tuner.deploy.preflight.capture import captured_text, hash_folder, read_capture
from tuner.deploy.preflight.network import read_sysfs

DATA = Path(__file__).parents[1] / "data" / "cluster"
H20 = {"h20-node01": DATA / "h20-node01", "h20-node02": DATA / "h20-node02"}
L40S = DATA / "l40s-miswired"


@pytest.fixture(scope="module")
def single_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("single") / "preflight.py"
    build_single_file(path)
    return path


def oldest_python() -> str:
    """A Python 3.8, of the system or of pyenv; or an empty string."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = [shutil.which("python3.8") or "", *map(str, versions.glob("3.8.*/bin/python3.8"))]
    for python in filter(None, found):  # pyenv's own python3.8 refuses unless 3.8 is chosen
        if not subprocess.run([python, "--version"], capture_output=True, check=False).returncode:
            return python
    return ""


PYTHONS = {"3.8": oldest_python(), "this one": sys.executable}


@pytest.fixture(params=PYTHONS)
def python(request):
    return PYTHONS[request.param] or pytest.skip("no Python 3.8 is here")


def run_single(
    path: Path, *arguments: str, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    command = [python, "-I", "-S", str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=path.parent)


def test_single_file_says_what_the_package_says(single_file, python):
    done = run_single(single_file, "--node", f"l40s-01={L40S.resolve()}", python=python)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == render(run_preflight({"l40s-01": L40S}))
    pair = [f"--node={name}={folder.resolve()}" for name, folder in H20.items()]
    done = run_single(single_file, *pair, "--json", python=python)
    assert done.returncode == 0
    assert json.loads(done.stdout)["nodes"][1]["environment"]["NCCL_IB_GID_INDEX"] == "3"


def test_single_file_checks_the_machine_it_is_on(single_file, python, tmp_path):
    done = run_single(single_file, "--capture", str(tmp_path), python=python)
    assert done.returncode == 0
    assert done.stderr.startswith(f"captured into {tmp_path}")
    done = run_single(single_file, "--json", python=python)
    assert done.returncode in (0, 1)
    assert len(json.loads(done.stdout)["nodes"]) == 1


def test_single_file_refuses_bad_input_in_one_line(single_file):
    done = run_single(single_file, "--node", "node01")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "NAME=DIR" in done.stderr


@pytest.mark.parametrize(("target", "code"), [("> /dev/full", 2), (">&-", 0), ("| true", 0)])
def test_output_that_cannot_be_written_ends_in_a_line(single_file, python, target, code):
    line = f'"{python}" -I -S "{single_file}" --node n="{H20["h20-node01"].resolve()}" {target}'
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") <= 1 and "Traceback" not in done.stderr


def test_a_shell_that_evaluates_the_report_exports_every_variable(env, tmp_path):
    shape = read_shape("roce-rails")
    rails = [{**group, "name": "ibp{i}24s0np0"} for group in shape["rdma"]]
    node = lay({**shape, "rdma": rails}, tmp_path / "it's a node")
    expected = run_preflight({"n": node}).nodes[0].environment
    assert len(expected["NCCL_IB_HCA"]) > 80 and len(expected) > 3
    tuner = Path(sys.executable).with_name("tuner")
    script = f'''eval "$("{tuner}" preflight --node n="{node}" | grep '^ *export ')" && env -0'''
    done = subprocess.run(
        ["bash", "-c", script], env={**env, "COLUMNS": "40"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    exported = dict(one.partition("=")[::2] for one in done.stdout.split("\0"))
    assert {name: exported.get(name) for name in expected} == expected


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
    silent = capture(out, image="an-image", config_dir=str(configs), root=L40S)
    assert {"show_gids.txt", "nvidia-smi-q.txt"} <= {*silent}
    assert "ibdev2netdev.txt" not in silent
    assert "these gave nothing: show_gids, nvidia-smi-topo" in captured_text(out, silent)
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

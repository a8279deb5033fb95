"""The preflight as one file, run by the system's Python without site packages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.deploy.preflight import build_single_file, render, run_preflight

DATA = Path(__file__).parents[1] / "data" / "cluster"
H20 = {"h20-node01": DATA / "h20-node01", "h20-node02": DATA / "h20-node02"}
L40S = DATA / "l40s-miswired"


@pytest.fixture(scope="module")
def single_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("single") / "preflight.py"
    build_single_file(path)
    return path


def run_single(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=path.parent)


def test_single_file_says_what_the_package_says(single_file: Path) -> None:
    done = run_single(single_file, "--node", f"l40s-01={L40S.resolve()}")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == render(run_preflight({"l40s-01": L40S}))
    pair = [f"--node={name}={folder.resolve()}" for name, folder in H20.items()]
    done = run_single(single_file, *pair, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["nodes"][1]["environment"]["NCCL_IB_GID_INDEX"] == "3"


def test_single_file_checks_the_machine_it_is_on(single_file: Path) -> None:
    done = run_single(single_file, "--json")
    assert done.returncode in (0, 1)
    assert len(json.loads(done.stdout)["nodes"]) == 1


def test_single_file_refuses_bad_input_in_one_line(single_file: Path) -> None:
    done = run_single(single_file, "--node", "node01")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "NAME=DIR" in done.stderr

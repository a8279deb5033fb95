"""`tuner check` and `tuner tune --measure predict` with a release for each Triton that engines pin.

A release that is not on this disk is skipped: `make test-all` adds them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiers import only
from typer.testing import CliRunner

from tuner.cli import app
from tuner.engines.config_files import read_config_file
from tuner.engines.engine import engine_triton, find_engine, find_triton
from tuner.errors import UnknownEngine

# Triton's minor release, and the releases of engines that pin it. vLLM 0.7.3, with 3.1, launches
# the kernel with other arguments; no release that was looked at pins 3.9.
PINNED = [
    ("3.1", "sglang==0.4.4"),
    ("3.2", "sglang==0.4.6.post5"),
    ("3.2", "vllm==0.8.5"),
    ("3.3", "sglang==0.4.7"),
    ("3.3", "vllm==0.10.1.1"),
    ("3.4", "sglang==0.5.2"),
    ("3.4", "vllm==0.10.2"),
    ("3.5", "sglang==0.5.8"),
    ("3.5", "vllm==0.15.1"),
    ("3.6", "sglang==0.5.16"),
    ("3.6", "vllm==0.24.0"),
    ("3.7", "sglang==0.5.19"),
    ("3.7", "vllm==0.29.0"),
    ("3.8", "sglang==0.5.23"),
    ("3.8", "vllm==0.33.0"),
]
DEVICE = "NVIDIA_H200"
PROBLEM = "fused_moe:E=8,N=256,K=512,top_k=2,dtype=fp8_w8a8,block_shape=128x128"


def available(minor: str, spec: str) -> None:
    """Skip the test if a release or the Triton that it pins is not here."""
    try:
        engine = find_engine(spec)
    except UnknownEngine:
        pytest.skip(f"{spec} is not here: `make test-all` adds it")
    triton = engine_triton(engine)
    assert triton is not None and triton.startswith(f"{minor}.")
    if find_triton(triton) is None:
        pytest.skip(f"no triton-{triton} beside the engines: `make test-all` unpacks it")


def shipped_file(spec: str) -> Path:
    """A file for experts that the release ships for the card, the first by its name."""
    named = f"device_name={DEVICE},dtype=fp8_w8a8,block_shape=*.json"
    found = sorted(find_engine(spec).root.rglob(f"E=*,{named}"))
    assert found, f"{spec} ships no file for blocks of fp8 and {DEVICE}"
    return found[0]


def ran(*words: str) -> dict:
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.usefixtures("few_kernels")
@pytest.mark.parametrize(("minor", "pinned"), only([PINNED[-2]], PINNED))
def test_a_shipped_file_can_run_and_a_problem_is_predicted(
    minor: str, pinned: str, tmp_path: Path, monkeypatch, compile_cache
) -> None:
    available(minor, pinned)
    monkeypatch.setenv("TUNER_DATABASE_URL", f"sqlite:///{tmp_path}/tuner.db")
    path = shipped_file(pinned)
    sizes = sorted(read_config_file(path).entries)[:2]
    entries = {m: one for m, one in json.loads(path.read_text()).items() if m in map(str, sizes)}
    (tmp_path / path.name).write_text(json.dumps(entries))
    checked = ran("check", str(tmp_path / path.name), "--device", DEVICE, "--engine", pinned)
    assert {entry["batch_size"] for entry in checked["entries"]} == set(sizes)
    assert all(entry["fits"] for entry in checked["entries"])
    words = ["--device", DEVICE, "--engine", pinned, "--measure", "predict", "--batch-sizes", "8"]
    tuned = ran("tune", PROBLEM, *words, "--effort", "quick")
    assert tuned["environment"]["triton"] == engine_triton(find_engine(pinned))
    at_size = [entry for entry in tuned["entries"] if entry["batch_size"] == 8]
    assert at_size and all(entry["status"] == "predicted" for entry in at_size)

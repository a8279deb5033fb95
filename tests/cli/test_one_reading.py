"""A command reads the config.json that it is given once, whatever it asks of the model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from cases import ROOT
from commands import run

from tuner.cli import tuning

MODEL = ROOT / "tests" / "data" / "models" / "deepseek-r1"
SERVED = ("--tp", "8", "--device", "H200")
NAME = "E=257,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"


@pytest.fixture
def readings(monkeypatch) -> Counter[str]:
    """How often each file was opened, by its name."""
    found: Counter[str] = Counter()
    really = Path.open

    def opened(path: Path, *more: object, **named: object) -> object:
        found[path.name] += 1
        return really(path, *more, **named)

    monkeypatch.setattr(Path, "open", opened)
    monkeypatch.setattr(tuning, "run_all", lambda *asked: None)  # what is tuned is not the question
    return found


@pytest.mark.parametrize("target", [MODEL, MODEL / "config.json"], ids=["folder", "file"])
@pytest.mark.parametrize(
    "words",
    [
        ("plan", "{}", *SERVED),
        ("tune", "{}", *SERVED, "--measure", "predict"),
        ("tune", "{}", *SERVED, "--all", "--engine", "sglang==0.5.16"),
        ("tune", "{}", *SERVED, "--family", "attention"),
        ("jobs", "submit", "{}", *SERVED),
        ("export", "{}", *SERVED),
        ("report", "{}", *SERVED),
    ],
    ids=lambda words: " ".join(words[:1] + words[6:7]),
)
def test_config_json_is_read_once(words, target, env, readings, tmp_path):
    run(*(word.format(target) for word in words), env=env, cwd=tmp_path)  # no winners: exit 1
    assert readings["config.json"] == 1


def test_a_check_of_files_for_a_model_reads_it_once(env, readings, tmp_path):
    (tmp_path / NAME).write_text("{}")
    run("check", tmp_path / NAME, "--model", MODEL, *SERVED, env=env, cwd=tmp_path)
    assert readings["config.json"] == 1

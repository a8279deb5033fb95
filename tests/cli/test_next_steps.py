"""Errors of commands that need what this machine lacks say where to run them."""

import re

import pytest

from tuner.cli import tuning as commands
from tuner.engines.engine import find_engine
from tuner.errors import MeasurerUnavailable
from tuner.measure.gpu_worker import ChildLimits, GpuWorker
from tuner.models.serving import Serving
from tuner.targets import resolve_target


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A folder of modules for child processes; `no_torch` is one that needs a missing package."""
    (tmp_path / "no_torch.py").write_text("import torch_that_is_not_here\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_measuring_without_torch_names_the_next_step(modules):
    with pytest.raises(MeasurerUnavailable) as caught:
        GpuWorker({}, {"PYTHONPATH": str(modules)}, ChildLimits(), "no_torch")
    said = str(caught.value)
    assert "No module named 'torch_that_is_not_here'" in said
    assert re.search("run it with the Python that serves the engine, .*--measure predict$", said)
    assert "measure=predict" in caught.value.in_api_words()
    assert "--measure" not in caught.value.in_api_words()


def test_what_no_server_can_load_is_told_before_the_work(capsys):
    problem = "extend_attention:q_heads=8,kv_heads=8,Lq=64,Lv=64,dtype=bfloat16"
    for version, told in (("0.4.4", True), ("0.5.16", False)):
        engine = find_engine(f"sglang=={version}")
        target = resolve_target(problem, Serving(engine="sglang", engine_version=version))
        commands._say_undeliverable(engine, target.problems)
        assert ("cannot be exported: " in capsys.readouterr().err) is told

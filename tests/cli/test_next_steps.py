"""Errors of commands that need what this machine lacks say where to run them."""

import json
import re

import pytest
from commands import run

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


EMPTY = {
    "jobs list": "there is no job: `tuner jobs submit MODEL --device GPU` queues the first",
    "jobs list --device L40S": "no job matches these options: `tuner jobs list` lists all",
    "results list": "nothing is stored: begin with `tuner tune`",
    "results list --device L40S": "nothing is stored for NVIDIA_L40S: begin with `tuner tune`",
    "nightly coverage": "nothing is stored: begin with `tuner tune`",
    "nightly watches list": "no watch was added: `tuner nightly watches add` adds a watch",
    "nightly run --list": "there was no night yet: `tuner nightly run` does a night",
    "admin workers list": "no worker was seen in the last two weeks: start `tuner worker` on",
    "admin keys list": "there is no key: `tuner admin keys create NAME` makes a key",
}


def test_an_empty_list_names_what_makes_its_first_row(env, subtests):
    """Only the other stream says so: what reads a list reads none."""
    for words, said in EMPTY.items():
        with subtests.test(words):
            done = run(*words.split(), env=env, code=0)
            assert (done.stdout, done.stderr.startswith(said)) == ("", True), done.stderr
            assert json.loads(run(*words.split(), "--json", env=env, code=0).stdout) == []


def test_tuning_what_does_not_fit_is_warned_of_as_its_plan_is(env, monkeypatch):
    monkeypatch.setattr(commands, "run_all", lambda *_: None)
    for tp, fits in (("8", False), ("16", True)):
        words = ("glm-4.6", "--tp", tp, "--device", "L40S")
        said = []
        for command in (["plan"], ["tune"], ["jobs", "submit"]):
            lines = run(*command, *words, env=env, code=0).stderr.splitlines()
            said.append([line for line in lines if "does not fit" in line])
        assert said == [said[0]] * 3
        assert (said[0] == []) == fits

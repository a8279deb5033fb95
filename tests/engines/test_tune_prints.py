"""`tuner tune` with several problems: each report is printed when its problem is done."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tuner.cli import runs
from tuner.cli.app import app
from tuner.engines.sglang.attention.binding import SGLangAttentionKernels
from tuner.errors import UnsupportedKernel
from tuner.families.attention.problem import AttentionPhase

SWEEP = Path(__file__).parents[2] / "benchmarks/results/h200/attention_sweep.csv.gz"
WORDS = ["tune", "qwen3-30b-a3b", "--attention", "--kv-splits", "8", "--device", "H200"]
WORDS += ["--engine", "sglang==0.5.16", "--measure", f"replay:{SWEEP}"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNER_DATABASE_URL", f"sqlite:///{tmp_path}/tuner.db")
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return lambda: CliRunner().invoke(app, WORDS)


def printed(report):
    return f"{report.problem.spec()}\n{report.as_text()}"


def test_an_interrupted_command_has_printed_the_problems_that_are_done(run, monkeypatch):
    whole, done = runs.run_here, []

    def interrupted(*args, **kwargs):
        if done:
            raise KeyboardInterrupt
        done.append(whole(*args, **kwargs))
        return done[0]

    monkeypatch.setattr(runs, "run_here", interrupted)
    answer = run()
    assert answer.exit_code == 130
    assert answer.stdout == f"{printed(done[0])}\n"


def test_reports_of_all_problems_are_printed_in_turn(run, monkeypatch):
    whole, done = runs.run_here, []
    monkeypatch.setattr(
        runs, "run_here", lambda *args, **kw: done.append(whole(*args, **kw)) or done[-1]
    )
    answer = run()
    assert answer.exit_code == 0, answer.stderr
    assert answer.stdout == "\n\n".join(map(printed, done)) + "\n"
    assert len(done) == 2


@pytest.mark.parametrize("alike", ["the other problem is tuned", "none can be"])
def test_a_problem_whose_kernels_cannot_be_lifted_is_not_tuned(run, monkeypatch, alike):
    whole = SGLangAttentionKernels.lifted

    def lifted(kernels, phase):
        if phase is AttentionPhase.EXTEND or alike == "none can be":
            raise UnsupportedKernel(f"{phase.value} has another layout")
        return whole(kernels, phase)

    monkeypatch.setattr(SGLangAttentionKernels, "lifted", lifted)
    answer = run()
    if alike == "none can be":
        assert (answer.exit_code, answer.stdout) == (1, "")
        assert "error: extend has another layout" in answer.stderr
    else:
        assert answer.exit_code == 0, answer.stderr
        assert answer.stdout.startswith("kernel ")  # one report stands without its problem
        [line] = [line for line in answer.stderr.splitlines() if line.startswith("not tuned: ")]
        assert line.startswith("not tuned: extend_attention:q_heads=32,")
        assert line.endswith(": extend has another layout")

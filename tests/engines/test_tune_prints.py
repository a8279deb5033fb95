"""`tuner tune` with several problems: each report is printed when its problem is done."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tuner.cli import runs
from tuner.cli.app import app

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

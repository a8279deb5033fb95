"""`tuner tune` with several problems: each report is printed when its problem is done."""

import json

import pytest
from attention_cases import DECODE
from cases import H200, INT8, INT8_RECORDING, SWEEP
from typer.testing import CliRunner

from tuner.cli import runs
from tuner.cli.app import app
from tuner.engines.engine import find_engine
from tuner.engines.sglang.attention.binding import SGLangAttentionKernels
from tuner.errors import UnsupportedKernel
from tuner.families.fused_moe.family import MoeSelection
from tuner.families.scans import sources as scans
from tuner.problems.registry import parse_problem
from tuner.problems.results import MeasureKind
from tuner.tuning.request import Effort, Request, Source

WORDS = ["tune", "qwen3-30b-a3b", "--attention", "--kv-splits", "8", "--device", "H200"]
WORDS += ["--engine", "sglang==0.5.16", "--measure", f"replay:{SWEEP}"]

SCANS = [
    parse_problem("chunk_scan:heads=64,head_dim=64,groups=8,state_size=128,chunk_size=128"),
    parse_problem("gated_delta:key_heads=16,value_heads=32,key_dim=128,value_dim=128"),
]


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNER_DATABASE_URL", f"sqlite:///{tmp_path}/tuner.db")
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def run(store):
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


@pytest.mark.parametrize("problem", [DECODE, *SCANS])
def test_a_problem_whose_kernels_cannot_be_lifted_does_not_end_the_command(
    problem, store, monkeypatch, capsys
):
    def lifted(*_):
        raise UnsupportedKernel("sglang has another layout")

    monkeypatch.setattr(SGLangAttentionKernels, "lifted", lifted)
    monkeypatch.setattr(scans, "lift_files", lifted)
    engine = find_engine("sglang==0.5.16")
    sources = [Source(MeasureKind.REPLAY, path) for path in (SWEEP, INT8_RECORDING)]
    unlifted = Request(problem, H200, engine, sources[0])
    layer = Request(INT8, H200, engine, sources[1], MoeSelection((2,)), Effort.QUICK)
    runs.run_all([unlifted, layer], None, as_json=True)
    out, err = capsys.readouterr()
    assert json.loads(out)["problem"] == INT8.spec()
    assert f"not tuned: {problem.spec()}: sglang has another layout\n" in err
    with pytest.raises(UnsupportedKernel, match="another layout"):
        runs.run_all([unlifted, unlifted], None, as_json=True)

"""A model is one plan: `tuner plan`, `tune --all` and `jobs submit` choose the same problems."""

from __future__ import annotations

import json

import pytest
from commands import tuner
from typer.testing import CliRunner

from tuner.cli import tuning
from tuner.cli.commands import app
from tuner.models.table import presets

SERVED = [
    ("--tp", "8", "--device", "L40S", "--engine", "sglang==0.5.16"),
    ("--tp", "4", "--device", "H200", "--engine", "vllm==0.33.0"),
]
TRITON = ("--server-args", "--attention-backend triton")


@pytest.fixture
def tuned(tmp_path, monkeypatch):
    """The problems that `tuner tune` would tune."""
    monkeypatch.setenv("TUNER_DATABASE_URL", f"sqlite:///{tmp_path / 'tuner.db'}")
    monkeypatch.delenv("TUNER_SERVER", raising=False)
    found = []
    monkeypatch.setattr(tuning, "run_all", lambda requests, *_: found.extend(requests))
    return found


def chosen(tuned, *words):
    """What each command chooses; the exit code alone for a model that cannot be served so."""
    tuned.clear()
    done = CliRunner().invoke(app, ["tune", *words, "--all"])
    posted = CliRunner().invoke(app, ["jobs", "submit", *words, "--json"])
    assert posted.exit_code == done.exit_code, (done.stderr, posted.stderr)
    if done.exit_code:
        return done.exit_code, posted.exit_code, posted.exit_code
    jobs = json.loads(posted.stdout)
    jobs = jobs.get("jobs", [jobs])
    plan = json.loads(tuner("plan", *words, "--json").stdout)["problems"]
    return (
        sorted((one.problem.spec(), one.server.server_args) for one in tuned),
        sorted((one["request"]["problem"], one["request"].get("server_args", "")) for one in jobs),
        sorted(one["problem"] for one in plan if one["tune"]),
    )


@pytest.mark.parametrize("served", SERVED, ids=lambda served: " ".join(served[3:]))
@pytest.mark.parametrize("each", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_tune_all_and_submit_choose_the_same_problems_of_each_preset(tuned, served, each, subtests):
    some = 0
    for model in presets()[::each]:
        with subtests.test(model.name):
            ran, queued, planned = chosen(tuned, model.name, *served)
            assert ran == queued
            if not isinstance(ran, int):
                assert [problem for problem, _ in ran] == planned
                some += len(ran)
    assert some > 10


def test_flags_of_servers_add_what_they_make_servers_read(tuned):
    words = ("qwen3-32b", "--tp", "4", "--device", "H200", "--engine", "sglang==0.5.16")
    assert chosen(tuned, *words)[1] == []  # FlashAttention 3 and cuBLAS
    said = tuner("jobs", "submit", *words).stderr
    assert "left out decode_attention:" in said
    assert said.endswith("nothing is queued\n")
    assert "runs FlashAttention 3" in said
    ran, queued, _ = chosen(tuned, *words, *TRITON)
    assert ran == queued
    assert {problem.partition(":")[0] for problem, _ in ran} == {
        "decode_attention",
        "extend_attention",
    }
    named = json.loads(tuner("jobs", "submit", *words, "--family", "attention", "--json").stdout)
    asked = sorted(one["request"]["problem"] for one in named["jobs"])
    assert asked == [problem for problem, _ in queued]

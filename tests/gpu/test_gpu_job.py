"""A whole job on the GPU, from the command line to files that the engine reads."""

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_benches import this_device

from tuner.engines.config_files import launch_config, read_lenient
from tuner.engines.engine import find_engine
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.fused_moe.problem import BATCH_SIZES, Gemm
from tuner.families.fused_moe.recording import read_recording
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.registry import parse_problem

pytestmark = pytest.mark.gpu
PROBLEM = "fused_moe:E=16,N=256,K=512,top_k=4,dtype=bfloat16"
SIZES = (8, 256)
TUNER = [sys.executable, "-c", "from tuner.cli import main; main()"]


@pytest.fixture
def env(tmp_path) -> dict[str, str]:
    database = f"sqlite:///{tmp_path / 'tuner.db'}"
    return {**os.environ, "TUNER_DATABASE_URL": database, "TUNER_CACHE_DIR": str(tmp_path / "c")}


def tune(*options: str) -> list[str]:
    sizes = ",".join(map(str, SIZES))
    return [
        *TUNER,
        *("tune", PROBLEM, "--device", this_device().name, "--batch-sizes", sizes),
        *("--json", *options),
    ]


def run(command: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_job_is_exported_as_measured_and_replays(env, tmp_path):
    recording, out = tmp_path / "job.csv.gz", tmp_path / "out"
    options = ("--measure", "gpu", "--effort", "quick", "--record", str(recording))
    report = json.loads(run(tune(*options), env))
    chosen = {Point(e["batch_size"], Gemm(e["gemm"])): e for e in report["entries"]}
    assert set(chosen) == {Point(size, gemm) for size in SIZES for gemm in Gemm}
    assert {e["status"] for e in chosen.values()} == {"ok"}
    assert all(e["median_us"] > 0 for e in chosen.values())

    run([*TUNER, "export", "--device", this_device().name, "--out", str(out)], env)
    engine, problem = find_engine("sglang"), parse_problem(PROBLEM)
    for gemm in Gemm:
        triton = report["environment"]["triton"]
        file = moe_engine(engine).find_file(out, problem, this_device(), gemm, triton)
        entries = read_lenient(file).entries
        assert set(entries) == set(BATCH_SIZES)
        for size in SIZES:
            read = launch_config(moe_engine(engine).pick(entries, size))
            assert read == Config(chosen[Point(size, gemm)]["config"])

    recorded = read_recording(recording).trials
    for point, entry in chosen.items():
        assert recorded[Candidate(point, Config(entry["config"]))].measurement.timed
    replayed = json.loads(run(tune("--measure", f"replay:{recording}"), env))
    assert {e["status"] for e in replayed["entries"]} == {"ok"}


def test_killed_job_leaves_no_process_and_goes_on(env):
    command = tune("--measure", "gpu")
    killed = subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    with killed:
        for line in killed.stderr:
            if re.search(r"\b[1-9]\d* of \d+ tried", line):  # so something is stored
                break
        killed.kill()
    before = stored_trials(env)
    assert before
    report = json.loads(run(command, env))
    after = stored_trials(env)
    assert {e["status"] for e in report["entries"]} == {"ok"}
    assert len(after) > len(before)
    assert {key: after[key] for key in before} == before  # not measured anew
    assert measuring_processes(env) == []


def stored_trials(env: dict[str, str]) -> dict[tuple[str, int, str], float | None]:
    path = env["TUNER_DATABASE_URL"].removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(path)) as store:
        rows = store.execute("SELECT part, batch_size, config_key, median_us FROM trials")
        found = [((gemm, size, key), us) for gemm, size, key, us in rows]
    assert len(dict(found)) == len(found)  # one run, and nothing twice in it
    return dict(found)


def measuring_processes(env: dict[str, str]) -> list[str]:
    """Measuring processes that this test's commands started and left behind."""
    mark = f"TUNER_CACHE_DIR={env['TUNER_CACHE_DIR']}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = mark in (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if ours and b"gpu_child" in command:
            found.append(command.decode())
    return found

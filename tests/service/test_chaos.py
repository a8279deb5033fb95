"""The short form of `make chaos`: everything is killed at random, nothing is lost or done twice."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmark_scripts import load_script
from tiers import only

ROOT = Path(__file__).parents[2]


# In so short a time, all workers may be killed one after another: then nobody watches a dead one's
# job for a while. And mounting a small disk, to fill it, takes root.
OPTIONS = (
    "--jobs 40 --clients 4 --workers 3 --every 4 --restart-every 20 --full-disk 0 "
    "--reclaim-limit 300 --limit 300"
)


# Most of its time passes until the job of a killed worker is queued again. At night, each is ended
# by SIGTERM too.
ON_SQLITE = "--store sqlite --clients 4 --every 1 --lanes 1 --reclaim-limit 600 --limit 300"
SHORT, LONG = "--jobs 8 --blows 1", "--jobs 24 --blows 2"
BLOWS = {SHORT: ("1 kill {}",), LONG: ("1 kill {}", "1 SIGTERM to {}")}


def chaos(options: str, **environ: str) -> str:
    """The figures of a trial that kept all promises."""
    script = ROOT / "benchmarks" / "chaos.py"
    run = subprocess.run(
        [sys.executable, script, *options.split()],
        env={**os.environ, **environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.slow  # each kind of harm has tests of its own
@pytest.mark.timeout(1800)
def test_nothing_is_lost_or_done_twice():
    said = chaos(OPTIONS)
    assert "| jobs accepted over HTTP | 40 (" in said
    for done in ("PostgreSQL crashed", "Redis flushed", "clock set 2 times", "4 API keys replaced"):
        assert done in said


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", only([SHORT], BLOWS))
def test_a_sqlite_file_survives_its_neighbours(compile_cache, size):
    said = chaos(f"{ON_SQLITE} {size}", TUNER_CACHE_DIR=str(compile_cache))
    assert f"| jobs accepted over HTTP | {size.split()[1]} (" in said
    for what in ("API", "worker", "tuning process"):
        assert all(blow.format(what) in said for blow in BLOWS[size])
    for command in (
        "keys create",
        "keys list",
        "jobs",
        "coverage",
        "nightly run",
        "export",
        "tune",
    ):
        assert re.search(rf"beside the service \| .*[0-9] {command}\b", said)


def test_attacks_are_judged(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    attacks = load_script("attacks.py")
    kept = {"attack": "bombs", "key": "none", "MB before": 90.0, "after": 140.0}
    kept |= {f"{what} {figure}": 0 for what in ("health", "list") for figure in ("p99", "failed")}
    assert attacks.faults(kept, kept) == []
    for name, value, said in (
        ("health p99", 300.0, "bombs, key none: health p99 300.0 ms"),
        ("list p99", 1200.0, "bombs, key none: list p99 1200.0 ms"),
        ("health failed", 1, "bombs, key none: 1 requests failed (health failed)"),
        ("after", 140.1, "bombs, key none: 140.1 MB are kept, of 90.0 MB at first"),
    ):
        assert attacks.faults({**kept, name: value}, kept) == [said]

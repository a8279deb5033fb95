"""Each command that opens a store opens the store that the environment names."""

import os

import pytest
import typer
from bundle_cases import EXAMPLES
from cases import FP8_RECORDING
from commands import run

from tuner.cli.commands import app
from tuner.store.shelf import SHIPPED

PROBLEM = "fused_moe:E=256,N=256,K=7168,top_k=8,dtype=fp8_w8a8,block_shape=128x128"
ENGINE = ("--engine", "sglang==0.5.16")
REPLAY = (PROBLEM, "--device", "H200", *ENGINE, "--measure", f"replay:{FP8_RECORDING}")
CLUSTER = str(EXAMPLES / "cluster-l40s-4x8.toml")
WITHOUT = ["check", "diagnose", "preflight", "load-proof", "bench-report"]
WITHOUT += ["list models", "list devices", "list engines"]
OPENING = {
    "plan": ("deepseek-r1", "--device", "H200", *ENGINE),
    "tune": REPLAY,
    "export": ("--device", "H200", *ENGINE),
    "diff": ("2026-11-24", "2026-11-25"),
    "report": ("--device", "H200", *ENGINE),
    "bundle": ("--device", "L40S", "--cluster", CLUSTER, *ENGINE),
    "serve": ("--port", "0"),
    "worker": (),
    "jobs list": (),
    "jobs submit": REPLAY,
    "jobs show": ("an-id",),
    "jobs follow": ("an-id",),
    "jobs cancel": ("an-id",),
    "jobs retry": ("an-id",),
    "nightly run": (),
    "nightly watches list": (),
    "nightly watches add": ("deepseek-r1", "--device", "H200"),
    "nightly watches remove": ("1",),
    "nightly coverage": (),
    "results list": (),
    "results show": (PROBLEM, "--device", "H200"),
    "results forget": (PROBLEM, "--device", "H200"),
    "results export": ("--device", "H200", *ENGINE),
    "results import": (str(min(SHIPPED.glob("*/*.jsonl.gz"))),),
    "admin keys create": ("alice",),
    "admin keys ensure": ("alice", "--token-file", "token"),
    "admin keys list": (),
    "admin keys revoke": ("alice",),
    "admin workers list": (),
    "admin workers drain": ("gpu-0",),
    "admin workers resume": ("gpu-0",),
    "admin migrate": (),
    "admin prune": ("--days", "30"),
}


def commands(group, before=()):
    """Yield the words of each command that is no group."""
    for name, one in group.commands.items():
        words = (*before, name)
        yield from commands(one, words) if hasattr(one, "commands") else [" ".join(words)]


def test_each_command_is_known_to_open_a_store_or_not():
    assert sorted([*OPENING, *WITHOUT]) == sorted(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("words", OPENING)
def test_a_command_opens_the_store_that_a_file_names(words, tmp_path):
    """Nothing is kept in such a store: each command that opens it says so, and makes no other."""
    (tmp_path / "database_url").write_text("mysql://me:secret@db/tuner\n")
    (tmp_path / "token").write_text("a-token-of-more-than-thirty-two-characters\n")
    ours = {name: value for name, value in os.environ.items() if not name.startswith("TUNER_")}
    env = {
        **ours,
        "TUNER_DATABASE_URL_FILE": str(tmp_path / "database_url"),
        "TUNER_BROKER_URL": "redis://127.0.0.1:1/0",
        "XDG_DATA_HOME": str(tmp_path / "data"),
    }
    done = run(*words.split(), *OPENING[words], env=env, cwd=tmp_path, code=2)
    assert "no store is kept in 'mysql'" in done.stderr
    assert not list(tmp_path.rglob("*.db"))

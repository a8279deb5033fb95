"""benchmarks/served, with real processes, beside stand-ins for the engine and the driver."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from advice_cases import entries
from attention_cases import DECODE, fill
from served_cases import QUICK, STAND_INS, command, compare, environment, exported
from tiers import only
from typer.testing import CliRunner

from benchmarks.served.__main__ import app
from tuner.store.results import ResultStore


@pytest.fixture
def place(tmp_path):
    """A folder with exported files and a model's folder."""
    exported(tmp_path / "configs_out")
    (tmp_path / "model").mkdir()
    return tmp_path


def report_of(place: Path) -> dict[str, object]:
    return json.loads((place / "served_proof/report.json").read_text())


def test_both_servers_are_compared_and_the_report_is_kept(place):
    run = compare(place, "model", "--json")
    shown = json.loads(run.stdout)
    assert run.returncode == (0 if shown["proven"] else 1), run.stderr
    assert shown == report_of(place)
    assert shown["sides"] == "side by side"
    assert shown["outputs"]["ok"] and shown["loading"] == []
    metrics = {(gain["load"], gain["metric"]) for gain in shown["gains"]}
    assert {("1x8+4", "prefill_tok_s"), ("1x8+4", "ttft_ms"), ("2x16+8", "tpot_ms")} <= metrics
    assert all(len(gain["rounds"]["after"]) == 2 for gain in shown["gains"])
    text = (place / "served_proof/report.txt").read_text()
    assert all(len(line) <= 80 for line in text.splitlines()), text


def test_the_engines_own_choice_is_compared_with_the_flags_that_are_advised(place):
    (place / "configs_out/provenance/decode.json").write_text(
        json.dumps({"problem": DECODE.spec()})
    )
    faster = entries(DECODE, others={"flashinfer": 40.0}, without_us="flashinfer")
    with ResultStore.open(f"sqlite:///{place / 'tuner.db'}") as store:
        fill(store, DECODE, faster, device="NVIDIA_L40S")
    run = compare(place, "model", "--args=--x 1", "--json")
    shown = json.loads(run.stdout)
    assert shown["before_args"] == "--x 1"
    assert shown["after_args"] == "--x 1 --decode-attention-backend triton"
    assert len(shown["notes"]) == 1 and shown["advice"]  # of too few rounds
    started = {
        side: (place / f"served_proof/{side}-1.log").read_text().splitlines()[0]
        for side in ("before", "after")
    }
    assert "attention-backend" not in started["before"]
    assert started["after"].endswith(shown["after_args"])
    # Whoever says the flags of that server gets no others.
    said = compare(place, "model", "--after-args=--y", "--json")
    assert json.loads(said.stdout)["after_args"] == "--y"


def test_servers_in_turn_have_a_log_for_each_start(place):
    run = compare(place, "model", "--in-turn", "--json")
    shown = json.loads(run.stdout)
    assert shown["sides"] == "in turn"
    assert {path.name for path in (place / "served_proof").glob("*.log")} == {
        *("before-1.log", "after-1.log", "before-2.log")
    }
    assert all(len(gain["rounds"]["before"]) == 2 for gain in shown["gains"])


def test_vllm(place):
    exported(place / "for_vllm", folder=".")
    words = ("--engine", "vllm", "--out", "for_vllm", "--json")
    run = compare(place, "model", *words)
    shown = json.loads(run.stdout)
    assert (shown["engine"], shown["engine_version"]) == ("vllm", "0.24.0")
    assert shown["outputs"]["ok"] and shown["loading"] == []


def test_files_that_are_not_loaded_are_not_proven(place):
    run = compare(place, "model", "--args=--ignore-files")
    assert run.returncode == 1
    assert "no line names a config file" in run.stdout
    assert "NOT PROVEN" in run.stdout.splitlines()[-1]


def test_the_before_server_does_not_get_the_variables_of_the_shell(place):
    folder = str(place / "configs_out")
    run = compare(place, "model", SGLANG_MOE_CONFIG_DIR=folder)
    assert "files: every tuned file was used" in run.stdout, run.stderr
    assert "MoE kernel config" not in (place / "served_proof/before-1.log").read_text()


@pytest.mark.slow  # tests/unit/test_served.py has its rule
def test_attention_alone_does_not_point_sglang_at_a_folder_without_configs(tmp_path):
    exported(tmp_path / "configs_out", folder="attention/triton_3_6_0")
    (tmp_path / "model").mkdir()
    run = compare(tmp_path, "model", "--json")
    shown = json.loads(run.stdout)
    assert shown["before_args"] == shown["after_args"] == ""  # no stored time advises a flag
    assert any("no line names a config file" in line for line in shown["loading"])


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "a model is needed"),
        (("nowhere",), 2, "neither a model's folder nor a name on the hub"),
        (("model", "--loads", "1x8"), 2, "'1x8' is no load"),
        (("model", "--rounds", "0"), 2, "--rounds 0"),
        (("model", "--layers", "2"), 2, "add --dummy"),
        (("model", "--dummy"), 2, "config.json"),
        (("model", "--out", "empty"), 2, "run `tuner export --device NVIDIA_L40S`"),
        (("model", "--tp", "2"), 1, "--tp 2 needs 2 GPUs"),
        (("model", "--device", "H200"), 2, "nothing exported for NVIDIA_H200"),
        (("model", "--engine", "sglang==0.5.23"), 2, "sglang 0.5.16 is installed"),
        (("model", "--args", "'"), 2, "close each quote"),
    ],
)
def test_what_is_refused_before_a_server_starts(place, monkeypatch, words, code, said):
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(STAND_INS)
    monkeypatch.setenv("PATH", str(STAND_INS / "bin"), prepend=os.pathsep)
    run = CliRunner().invoke(app, [*QUICK, *words])
    assert run.exit_code == code, run.output
    assert said in run.stderr
    assert not (place / "served_proof").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(
            *(("--after-args", "--die 'no kernel image'"), "no kernel image"),
            marks=pytest.mark.slow,
        ),
        (("--args=--die-at-load",), "illegal memory access"),
        (("--args=--short-answers",), "answered 3 of 4 tokens"),
        (("--args=--hang", "--start-timeout", "0.5"), "not ready within 0.5 s"),
    ],
)
def test_a_server_that_fails_is_said_with_its_last_lines(place, words, said):
    run = compare(place, "model", *words)
    assert run.returncode == 1, run.stderr
    assert said in run.stderr
    assert not (place / "served_proof/report.json").exists()


def test_memory_for_one_server_alone_lets_them_run_in_turn(place):
    # The second server finds no memory, whichever flags say how much it may take.
    words = ("--after-args", "--die 'torch.OutOfMemoryError: CUDA out of memory'")
    run = compare(place, "model", *words)
    assert run.returncode == 1
    assert "they run in turn" in run.stderr
    assert "too little GPU memory" in run.stderr


def test_no_engine_and_no_gpu(place):
    run = compare(place, "model", PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    assert run.returncode == 2 and "sglang is not installed in this Python" in run.stderr
    run = compare(place, "model", PATH="")
    assert run.returncode == 1 and "no GPU here" in run.stderr


def test_a_port_that_is_taken(place):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = compare(place, "model", "--port", str(port))
    assert run.returncode == 2
    assert f"port {port} cannot be used" in run.stderr


def hanging(place: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A parent, and its processes: a server, its child, and one in a session of its own."""
    pipe = place / "pids"
    os.mkfifo(pipe)
    words = ("model", "--in-turn", "--args=--hang")
    parent = subprocess.Popen(
        # A shell's background jobs ignore SIGINT, and so would what this process starts.
        ["env", "--default-signal=INT", *command(*QUICK, *words)],
        cwd=place,
        env={**environment(place), "STAND_IN_PIDS": str(pipe)},
        stderr=subprocess.PIPE,
        text=True,
    )
    return parent, json.loads(pipe.read_text())


@pytest.mark.parametrize(
    "end", only([signal.SIGKILL], [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
)
def test_nothing_is_left_when_the_parent_is_killed(place, end):
    parent, pids = hanging(place)
    running = [os.pidfd_open(pid) for pid in pids]
    parent.send_signal(end)
    for one in running:
        assert select.select([one], [], [], 60)[0], "what the server started still runs"
        os.close(one)
    parent.communicate(timeout=60)


def test_nothing_is_left_when_the_watchdog_is_killed(place):
    parent, (server, *others) = hanging(place)
    stat = Path(f"/proc/{server}/stat").read_text()
    watchdog = int(stat.rpartition(")")[2].split()[1])
    running = os.pidfd_open(server)
    os.kill(watchdog, signal.SIGKILL)
    assert select.select([running], [], [], 60)[0], "the server still runs"
    assert parent.stderr is not None
    assert "the before server ended" in parent.stderr.read()
    assert parent.wait(60) == 1
    for pid in others:  # the engine's own watch over its children ends them, the stand-in has none
        os.kill(pid, signal.SIGKILL)

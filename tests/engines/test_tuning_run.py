"""Runs whatever their family: what is stored and printed."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from attention_cases import DECODE
from cases import FP8, FP8_RECORDING, H200, INT8, INT8_RECORDING, SWEEP, tuned
from typer.testing import CliRunner

from tuner.bindings.sglang.attention.binding import SGLangAttentionKernels
from tuner.cli import runs
from tuner.cli.commands import app
from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.errors import UnsupportedKernel, UnwritableOutput
from tuner.families.attention.family import AttentionSelection
from tuner.families.attention.workloads import WorkPoint
from tuner.families.fused_moe.family import MoeSelection
from tuner.families.fused_moe.problem import Gemm
from tuner.families.scans import sources as scans
from tuner.measure.workbench import Workbench
from tuner.problems.points import Config, Point
from tuner.problems.registry import parse_problem
from tuner.problems.results import MeasureKind, Trial
from tuner.store.results import ResultStore
from tuner.tuning.request import Effort, Request, Source, prepare
from tuner.tuning.run import execute, open_source
from tuner.tuning.tune import Watcher

EXTEND = "extend_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16"
RECORDINGS = {FP8.spec(): FP8_RECORDING, EXTEND: SWEEP}


def request(text: str) -> Request:
    moe = text == FP8.spec()
    return Request(
        problem=parse_problem(text),
        device=find_device("H200"),
        engine=find_engine("sglang==0.5.16"),
        source=Source(MeasureKind.REPLAY, RECORDINGS[text]),
        selection=MoeSelection((16,)) if moe else AttentionSelection((WorkPoint(4, 256, 4096),)),
    )


class Removing(Watcher):
    """Removes a folder at the first trial."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def tried(self, trial: Trial) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


@pytest.mark.parametrize("text", RECORDINGS)
def test_a_recording_that_cannot_be_written_leaves_the_run_done(text: str, tmp_path: Path) -> None:
    folder, database = tmp_path / "folder", tmp_path / "tuner.db"
    folder.mkdir()
    asked = request(text)
    with ResultStore.open(f"sqlite:///{database}") as store:
        with pytest.raises(UnwritableOutput, match="winners are stored: run it again"):
            # The folder is there when the run begins, and gone when it ends.
            tuned(asked, store, watcher=Removing(folder), record=folder / "trials.csv.gz")
        assert store.winners(device="NVIDIA_H200", engine="sglang", problem=asked.problem)
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT state, reason FROM runs").fetchall() == [("done", "")]
    folder.mkdir()
    with ResultStore.open(f"sqlite:///{database}") as store:
        again = tuned(asked, store, record=folder / "trials.csv.gz")
    assert again.totals.measurements == 0
    assert (folder / "trials.csv.gz").is_file()


def test_a_gemm_tuned_alone_shares_its_block_with_the_stored_other_gemm(tmp_path: Path) -> None:
    sizes = (2, 16, 128, 1024, 4096)
    alone = {}
    with ResultStore.open(f"sqlite:///{tmp_path}/tuner.db") as store:
        for gemm in Gemm:
            asked = replace(request(FP8.spec()), selection=MoeSelection(sizes, (gemm,)))
            report = tuned(asked, store)
            alone[gemm] = {e.point.batch_size: e.config["BLOCK_SIZE_M"] for e in report.entries}
    assert len(alone[Gemm.UP]) == len(sizes)
    assert alone[Gemm.DOWN] == alone[Gemm.UP]
    free = replace(request(FP8.spec()), selection=MoeSelection(sizes, (Gemm.DOWN,)))
    with ResultStore.open("sqlite://") as store:
        report = tuned(free, store)
    own = {e.point.batch_size: e.config["BLOCK_SIZE_M"] for e in report.entries}
    assert own != alone[Gemm.DOWN]  # or nothing was held back


def test_a_run_starts_from_what_the_store_has_and_keeps_it_unless_it_is_beaten() -> None:
    thorough = replace(
        request(FP8.spec()), selection=MoeSelection((1024,)), effort=Effort.EXHAUSTIVE, wide=False
    )
    quick = replace(thorough, effort=Effort.QUICK)
    anew = replace(quick, carry_over=False)

    def configs(asked: Request, store: ResultStore) -> dict[Point, Config]:
        report = tuned(asked, store)
        return {entry.point: entry.config for entry in report.entries}

    with ResultStore.open("sqlite://") as empty:
        alone = configs(quick, empty)
    with ResultStore.open("sqlite://") as store:
        best = configs(thorough, store)
        assert alone != best  # or the store has nothing to give
        assert configs(anew, store) == alone
        configs(thorough, store)
        assert configs(quick, store) == best


class Counting(Watcher):
    """Counts the trials of each size."""

    def __init__(self) -> None:
        self.sizes: Counter[str] = Counter()

    def tried(self, trial: Trial) -> None:
        self.sizes[trial.candidate.point.size] += 1


def test_no_more_is_tried_at_a_size_than_a_run_says() -> None:
    """Neighbours' winners come after a search's own tries, and count too."""
    engine, source = find_engine("sglang==0.5.16"), Source(MeasureKind.REPLAY, INT8_RECORDING)
    prepared = prepare(Request(INT8, H200, engine, source, effort=Effort.QUICK))
    watcher = Counting()
    with ResultStore.open("sqlite://") as store, Workbench() as workbench:
        execute(prepared, open_source(prepared.request, workbench), store, watcher)
    assert [s for s, most in prepared.tries.items() if watcher.sizes[s] > most] == []
    assert sum(watcher.sizes[size] for size in prepared.tries) > 2 * 16 * len(prepared.tries)


def test_one_configuration_for_both_gemms_is_as_fast_as_the_best_recorded_one() -> None:
    """The best one's up gemm is far from the fastest up gemm."""
    engine, source = find_engine("sglang==0.4.4"), Source(MeasureKind.REPLAY, INT8_RECORDING)
    asked = Request(INT8, H200, engine, source, MoeSelection((1024,)), wide=False)
    with ResultStore.open("sqlite://") as store:
        standard, best = (
            tuned(replace(asked, effort=effort), store).entries
            for effort in (Effort.STANDARD, Effort.EXHAUSTIVE)
        )
    up, down = standard
    assert up.config == down.config
    assert up.median_us + down.median_us <= 1.005 * sum(entry.median_us for entry in best)


# Several problems: each report is printed when its problem is done

WORDS = ["tune", "qwen3-30b-a3b", "--family", "attention", "--kv-splits", "8", "--device", "H200"]
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

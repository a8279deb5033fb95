"""A session's promises whatever its family: what was published stays published."""

from __future__ import annotations

import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from cases import FP8, FP8_RECORDING, SWEEP, tuned

from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.errors import UnwritableOutput
from tuner.families.attention.family import AttentionSelection
from tuner.families.attention.workloads import WorkPoint
from tuner.families.fused_moe.family import MoeSelection
from tuner.families.fused_moe.problem import Gemm
from tuner.problems.points import Config, Point
from tuner.problems.registry import parse_problem
from tuner.problems.results import MeasureKind, Trial
from tuner.store.results import ResultStore
from tuner.tuning.request import Effort, Request, Source
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
        request(FP8.spec()),
        selection=MoeSelection((1024,)),
        effort=Effort.EXHAUSTIVE,
        wide=False,
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

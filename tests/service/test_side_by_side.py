"""`tune --gpus 0,1`: which GPU gets which problem, and what becomes of the others if one fails.

`tests/engines/test_tuning_run.py` has the processes that really tune.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from cases import FP8, H200
from stand_in_gpu import DIES, FAILS, REFUSED, WAITS

from tuner.cli import side_by_side
from tuner.engines.engine import find_engine
from tuner.errors import MeasurerFailed, TunerError
from tuner.problems.results import MeasureKind
from tuner.tuning.request import Request, Source

GPUS = ("0", "1")


@pytest.fixture
def log(tmp_path, monkeypatch):
    """The lines of what the processes heard and did."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    os.mkfifo(tmp_path / "meeting")
    monkeypatch.setattr(side_by_side, "MODULE", "stand_in_gpu")
    return lambda: lines(tmp_path / "log")


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def requests(*seeds: int) -> list[Request]:
    engine = find_engine("sglang==0.5.16")
    source = Source(MeasureKind.GPU)
    return [
        Request(replace(FP8, top_k=at + 1), H200, engine, source, seed=seed)
        for at, seed in enumerate(seeds)
    ]


def take(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    def estimates(asked: Sequence[Request]) -> list[float]:
        return list(seconds)

    monkeypatch.setattr(side_by_side, "_estimates", estimates)


def test_the_longest_problems_are_given_away_first_and_the_others_to_the_gpu_with_least_left(
    log, monkeypatch, capsys
):
    take(monkeypatch, 1000, 4000, 2000, 3000)
    side_by_side.run_side_by_side(requests(0, 0, 0, 0), GPUS, as_json=True)
    heard = [line for line in log() if "hears" in line]
    assert sorted(heard) == [
        "GPU 0 hears of 0",
        "GPU 0 hears of 1",
        "GPU 1 hears of 2",
        "GPU 1 hears of 3",
    ]
    ran = [line for line in log() if line.endswith("runs")]
    assert ran.index("1 runs") < ran.index("0 runs")
    assert ran.index("3 runs") < ran.index("2 runs")
    out, err = capsys.readouterr()
    assert [report["at"] for report in json.loads(out)["reports"]] == [0, 1, 2, 3]
    assert "4 problems on 2 GPUs in" in err


def test_a_gpu_that_is_done_gets_what_the_busy_one_had_no_time_for(log, monkeypatch, capsys):
    take(monkeypatch, 9000, 1000, 1000, 1000)
    with pytest.raises(MeasurerFailed):  # the last problem ends its process, and so the wait
        side_by_side.run_side_by_side(requests(WAITS, 0, 0, DIES), GPUS, as_json=False)
    assert {line for line in log() if line.startswith("GPU 0")} == {"GPU 0 hears of 0"}
    assert capsys.readouterr().out == "1.\n\n2.\n"


def test_the_first_failure_interrupts_the_other_runs(log, monkeypatch):
    take(monkeypatch, 2, 1)
    with pytest.raises(TunerError, match="^as asked$") as caught:
        side_by_side.run_side_by_side(requests(WAITS, FAILS), GPUS, as_json=False)
    assert caught.value.exit_code == 2
    assert log()[-1] == "0 interrupted"


def test_a_process_that_dies_is_named_by_its_gpu(log, monkeypatch):
    take(monkeypatch, 2, 1)
    with pytest.raises(MeasurerFailed, match=r"on GPU 1: the process ended \(exit code 7\)"):
        side_by_side.run_side_by_side(requests(WAITS, DIES), GPUS, as_json=False)


def test_a_problem_that_cannot_be_tuned_does_not_end_the_others(log, monkeypatch, capsys):
    take(monkeypatch, 3, 2, 1)
    asked = requests(REFUSED, REFUSED, 0)
    side_by_side.run_side_by_side(asked, GPUS, as_json=False)
    out, err = capsys.readouterr()
    assert out == "2.\n"
    for one in asked[:2]:
        assert f"not tuned: {one.problem.spec()}: not that one" in err


def test_if_no_problem_can_be_tuned_the_command_fails(log, monkeypatch):
    take(monkeypatch, 3, 2, 1)
    with pytest.raises(TunerError, match="^not that one$"):
        side_by_side.run_side_by_side(requests(REFUSED, REFUSED, REFUSED), GPUS, as_json=False)

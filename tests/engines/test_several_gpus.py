"""`tune --gpus 0,1`: the processes that tune, with real kernels and without a GPU.

`tests/service/test_side_by_side.py` has how problems are given to GPUs.
"""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from cases import FP8, H200

from tuner.cli import side_by_side
from tuner.engines.engine import find_engine
from tuner.families.fused_moe.family import MoeSelection
from tuner.families.fused_moe.problem import Gemm
from tuner.problems.results import MeasureKind
from tuner.store.results import ResultStore
from tuner.tuning.request import Effort, Request, Source

pytestmark = pytest.mark.timeout(900)


def request(problem, size):
    engine, selection = find_engine("sglang==0.5.16"), MoeSelection((size,), (Gemm.UP,))
    return Request(problem, H200, engine, Source(MeasureKind.GPU), selection, Effort.QUICK)


@pytest.fixture
def told(tmp_path, monkeypatch):
    """The file of what the GPUs' children were asked."""
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    monkeypatch.setenv("TUNER_DATABASE_URL", f"sqlite:///{tmp_path / 'tuner.db'}")
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    monkeypatch.setattr(side_by_side, "MODULE", "one_fake_gpu")
    return tmp_path / "told"


def test_each_problem_is_measured_on_one_gpu_and_stored(tmp_path, told, capsys):
    requests = [request(replace(FP8, E=64), 1), request(FP8, 16)]
    side_by_side.run_side_by_side(requests, ("0", "1"), as_json=True)
    gpus = {}
    for line in told.read_text().splitlines():
        asked, gpu = line.split(" GPU ")
        gpus.setdefault(asked.split()[1], set()).add(gpu)
    assert sorted(map(len, gpus.values())) == [1, 1]
    assert set().union(*gpus.values()) == {"0", "1"}
    out, err = capsys.readouterr()
    reports = json.loads(out)["reports"]
    assert [report["problem"] for report in reports] == [one.problem.spec() for one in requests]
    assert "GPU 0: problem 1 of 2: " in err or "GPU 1: problem 1 of 2: " in err
    with ResultStore.open(f"sqlite:///{tmp_path / 'tuner.db'}") as store:
        for one, report in zip(requests, reports, strict=True):
            stored = store.winners(device=H200.name, engine="sglang", problem=one.problem)
            configs = [winner.entry.config for winner in stored]
            assert report["entries"][0]["config"] in [dict(config) for config in configs]

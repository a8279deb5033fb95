"""Tuning runs of chunked scans on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_benches import this_device

from tuner.engines.engine import find_engine
from tuner.families.scans.selection import PromptSelection
from tuner.measure.workbench import Workbench
from tuner.problems.registry import parse_problem
from tuner.store.results import ResultStore
from tuner.tuning.request import Effort, Request, parse_source, prepare
from tuner.tuning.run import execute, open_source

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "text",
    [
        "chunk_scan:heads=8,head_dim=64,groups=1,state_size=128,chunk_size=128",
        "gated_delta:key_heads=2,value_heads=4,key_dim=128,value_dim=128",
    ],
)
def test_each_kernel_of_a_scan_is_right_and_no_slower(text: str, tmp_path: Path) -> None:
    problem = parse_problem(text)
    request = Request(
        problem,
        this_device(),
        find_engine("sglang"),
        parse_source("gpu"),
        PromptSelection(((1, 1000), (2, 512))),
        Effort.QUICK,
    )
    with ResultStore.open(f"sqlite:///{tmp_path}/t.db") as store, Workbench() as workbench:
        report = execute(prepare(request), open_source(request, workbench), store)
    assert {entry.point.part for entry in report.entries} == {*problem.parts}
    assert len(report.entries) == 2 * len(problem.parts)
    for entry in report.entries:
        own = entry.incumbents["default"].median_us
        assert own is not None, f"the engine's own choice is wrong at {entry.point}"
        assert entry.median_us is not None
        assert entry.median_us <= own

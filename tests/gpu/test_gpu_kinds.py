"""Each type and quantisation of each family and engine is tuned on a GPU, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gpu_benches import this_device
from kind_rows import CASES, few_points

from tuner.engines.engine import find_engine
from tuner.measure.workbench import Workbench
from tuner.problems.registry import parse_problem
from tuner.problems.results import MISHAPS, Status
from tuner.store.results import ResultStore
from tuner.tuning.request import Effort, Request, parse_source, prepare
from tuner.tuning.run import execute, open_source

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def workbench() -> Iterator[Workbench]:
    with Workbench() as bench:
        yield bench


@pytest.mark.parametrize(("text", "engine"), CASES)
def test_every_kind_is_tuned_and_no_candidate_is_lost(
    text: str, engine: str, workbench: Workbench, tmp_path: Path
) -> None:
    problem = parse_problem(text)
    request = Request(
        problem=problem,
        device=this_device(),
        engine=find_engine(engine),
        source=parse_source("gpu"),
        selection=few_points(problem),
        effort=Effort.QUICK,
    )
    with ResultStore.open(f"sqlite:///{tmp_path}/tuner.db") as store:
        report = execute(prepare(request), open_source(request, workbench), store)
    assert not report.mishaps, report.mishaps
    assert "lost" not in report.totals.extra
    tuned = [entry for entry in report.entries if entry.status is Status.OK]
    assert {entry.point.part for entry in tuned} == {*problem.parts}
    own = [entry.incumbents["default"] for entry in tuned]
    assert not [one for one in own if one.status in MISHAPS]
    # What runs together is chosen together, so the sum over a size's kernels counts.
    for size in {entry.point.size for entry in tuned}:
        here = [entry for entry in tuned if entry.point.size == size]
        own_us = [entry.incumbents["default"].median_us for entry in here]
        if None not in own_us:
            assert sum(entry.median_us for entry in here) <= 1.005 * sum(own_us), size

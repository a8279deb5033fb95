"""A new release of an engine: what keeps its times, what is raced again, and what is refused."""

import os
from collections import Counter
from pathlib import Path

import pytest
from cases import FP8, H200

from tuner.engines.engine import find_engine
from tuner.families.fused_moe.problem import Gemm
from tuner.families.fused_moe.selection import MoeSelection
from tuner.measure.workbench import Workbench
from tuner.problems.points import Candidate
from tuner.problems.results import MeasureKind, Status
from tuner.store import Store
from tuner.tuning.budget import Budget
from tuner.tuning.request import Effort, Source
from tuner.tuning.run import open_run
from tuner.tuning.run_request import Request

SELECTION = MoeSelection((16,), (Gemm.UP,))
ENTRIES = 1
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def tune(tmp_path, monkeypatch):
    """A function that tunes for a release, and returns its entries, totals and what was timed."""
    told = tmp_path / "told"
    monkeypatch.setenv("TOLD", str(told))
    few = Budget(per_point=12, kernels=12, seeds=8)  # half of the least effort's
    monkeypatch.setattr("tuner.families.fused_moe.tuning.budget_for", lambda *_: few)
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))  # for the fake child

    def run(version, **options):
        told.write_text("")
        request = Request(
            FP8,
            H200,
            find_engine(f"sglang=={version}"),
            Source(MeasureKind.GPU),
            SELECTION,
            Effort.QUICK,
            **options,
        )
        with (
            Workbench(child="recorded_moe_child") as workbench,
            open_run(request, workbench) as session,
            Store.open(f"sqlite:///{tmp_path / 'tuner.db'}") as store,
        ):
            report = session.run(store, lambda trial: None)
        operations = Counter(line.split()[0] for line in told.read_text().splitlines())
        return report, operations

    return run


def configs(report):
    return {entry.point: (entry.config, entry.median_us) for entry in report.entries}


def test_the_same_machine_code_of_a_new_release_keeps_its_times(tune):
    old, timed = tune("0.5.12")
    assert timed["measure"] > 10
    assert timed["race"] == ENTRIES
    new, timed = tune("0.5.16")
    assert not timed
    assert configs(new) == configs(old)
    assert new.environment.kernel_hash != old.environment.kernel_hash
    assert new.totals.measurements == 0
    assert new.totals.extra["carried_over"] == ENTRIES
    why = "; carried over: same machine code as in sglang 0.5.12 with Triton 3.6.0"
    assert all(entry.reason.endswith(why) for entry in new.entries)
    assert {entry.status for entry in new.entries} == {Status.OK}
    assert f"{ENTRIES} of {ENTRIES} entries carried over" in new.as_text()


def test_other_machine_code_is_raced_with_what_was_best_before(tune):
    _, searched = tune("0.5.16")
    new, timed = tune("0.5.23")
    assert 0 < timed["measure"] < searched["measure"] / 1.5
    assert timed["race"] == ENTRIES
    assert new.totals.extra["carried_over"] == 0
    assert all("the machine code has changed" in entry.reason for entry in new.entries)


def test_a_run_that_was_carried_over_is_the_next_one_s_earlier_run(tune):
    tune("0.5.12")
    tune("0.5.16")
    again, timed = tune("0.5.12", seed=1)  # this environment has its own winners
    assert timed["measure"] > 10
    assert "carried_over" not in again.totals.extra


def test_a_refusal_searches_anew(tune):
    tune("0.5.12")
    new, timed = tune("0.5.16", carry_over=False)
    assert timed["measure"] > 10
    assert "carried_over" not in new.totals.extra


def test_another_driver_measures_anew(tune, monkeypatch):
    tune("0.5.12")
    monkeypatch.setenv("DRIVER", "590.1")
    new, timed = tune("0.5.16")
    assert timed["measure"] > 10
    assert "carried_over" not in new.totals.extra


@pytest.mark.parametrize("version", ["0.4.4", "0.5.2", "0.5.12", "0.5.16", "0.5.23"])
def test_a_release_s_kernel_takes_each_key_that_a_search_on_a_gpu_tries(version):
    """Releases before 0.5.12 have no TMA."""
    engine = find_engine(f"sglang=={version}")
    request = Request(FP8, H200, engine, Source(MeasureKind.PREDICT), wide=True)
    with open_run(request) as run:
        bind = run._binder()
        for part, space in run._spaces.items():
            point = next(point for point in run.points if point.part is part)
            for tma in {config.get("USE_TMA") for config in space.configs()}:
                config = next(c for c in space.configs() if c.get("USE_TMA") == tma)
                bind(Candidate(point, config))

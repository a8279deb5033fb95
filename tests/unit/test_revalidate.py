"""Results of an older engine or Triton: where they stand, and where a race decides again."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from tuner.families.fused_moe.choose import MoeChooser, Policy
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.records import EarlierRun, Run, RunKey, RunState
from tuner.problems.results import (
    Compiled,
    Environment,
    MeasureKind,
    Measurement,
    Status,
    Totals,
    Trial,
)
from tuner.tuning.revalidate import CARRIED, Revalidation
from tuner.tuning.tune import FixedStrategy, Plan, tune

SIZES = (8, 16)
POINTS = [Point(size, gemm) for size in SIZES for gemm in Gemm]
AT_8, AT_16 = POINTS[:2], POINTS[2:]
KEY = RunKey(
    FusedMoe(E=8, N=64, K=128, top_k=2, dtype=Dtype.BFLOAT16),
    Environment("NVIDIA_H200", "sglang", "0.5.12", "3.6.0", "ab"),
    MeasureKind.GPU,
    "quick",
    0,
    tuple(POINTS),
    "grid",
)
SEARCHED, RACED = 100.0, 90.0  # microseconds of the earlier search and of its race


def config(n: int) -> Config:
    return Config({"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": n})


DEFAULT, WINNER, RIVAL, SHIPPED = (config(n) for n in range(1, 5))
TIMES = {DEFAULT: 20.0, WINNER: 0.0, RIVAL: 1.0}  # more than the best


def compiled(one: Config, version: str = "") -> Compiled:
    return Compiled(Status.OK, code=f"{one.key}{version}")


def plan(shipped_at: Collection[Point] = ()) -> Plan:
    incumbents = {
        point: {"default": DEFAULT} | ({"shipped": SHIPPED} if point in shipped_at else {})
        for point in POINTS
    }
    return Plan(POINTS, incumbents, MoeChooser(incumbents, Policy(0.004), SIZES))


def earlier(change: Sequence[Trial] = ()) -> EarlierRun:
    def at(point: Point, one: Config, best: float) -> Trial:
        measured = Measurement(Status.OK, best + TIMES[one])
        return Trial(Candidate(point, one), compiled(one), measured)

    searched = [at(point, one, SEARCHED) for point in POINTS for one in TIMES]
    trials = {trial.candidate: trial for trial in [*searched, *change]}
    raced = [at(point, one, RACED) for point in POINTS for one in TIMES]
    now = datetime.now(timezone.utc)
    run = Run(1, KEY, RunState.DONE, "", None, now, now)
    return EarlierRun(run, list(trials.values()), plan().chooser.choose(raced))


class Bench:
    """Compiles `changed` to other code. It measures 50 us, and races with 40 us, for a winner."""

    def __init__(self, revalidation: Revalidation, changed: Collection[Candidate] = ()) -> None:
        self.totals, self.measured = Totals(), []
        self._revalidation, self._changed = revalidation, changed
        self._waiting: list[Candidate] = []

    def submit(self, candidates: Sequence[Candidate]) -> None:
        self._waiting += candidates

    def poll(self, wait: bool) -> list[Trial]:
        some, self._waiting = self._waiting, []
        return [self._trial(candidate) for candidate in some]

    def _trial(self, candidate: Candidate) -> Trial:
        version = " of a new Triton" if candidate in self._changed else ""
        made = compiled(candidate.config, version)
        known = self._revalidation.known(candidate, made)
        if known is None:
            self.measured.append(candidate)
            known = Measurement(Status.OK, 50.0 + TIMES.get(candidate.config, 5.0))
        return Trial(candidate, made, known)

    def race(self, candidates: Sequence[Candidate], rounds: int):
        raced = {candidates[0].point: {c.config for c in candidates}}
        self.raced = {**getattr(self, "raced", {}), **raced}
        return {c: Measurement(Status.OK, 40.0 + TIMES.get(c.config, 5.0)) for c in candidates}


class Journal:
    def trials(self) -> Sequence[Trial]:
        return []

    def add(self, trials: Sequence[Trial]) -> None:
        pass


def run(changed=(), new=None, old=None):
    the_plan = new or plan()
    revalidation = Revalidation(old or earlier(), the_plan)
    bench = Bench(revalidation, changed)
    strategy = FixedStrategy(revalidation.candidates())
    entries = tune(the_plan, strategy, bench, Journal(), lambda trial: None, bench, revalidation)
    return bench, {entry.point: entry for entry in entries}


def test_where_no_code_changes_the_times_of_the_last_race_stand():
    bench, entries = run()
    assert not bench.measured
    assert not hasattr(bench, "raced")
    assert {entry.config for entry in entries.values()} == {WINNER}
    assert {entry.median_us for entry in entries.values()} == {RACED}
    assert {e.incumbents["default"].median_us for e in entries.values()} == {RACED + 20}
    why = f"; {CARRIED} as in sglang 0.5.12 with Triton 3.6.0"
    assert all(entry.reason.endswith(why) for entry in entries.values())
    assert bench.totals.extra["carried_over"] == len(POINTS)


@pytest.mark.parametrize("one", [WINNER, RIVAL, DEFAULT])
def test_other_code_of_one_finalist_is_timed_and_its_size_raced(one):
    changed = Candidate(AT_16[0], one)
    bench, entries = run([changed])
    assert bench.measured == [changed]
    assert bench.raced == dict.fromkeys(AT_16, set(TIMES))  # both gemms: they are chosen together
    assert {entries[point].median_us for point in AT_8} == {RACED}
    assert {entries[point].median_us for point in AT_16} == {40.0}
    assert all("the machine code has changed" in entries[point].reason for point in AT_16)
    assert bench.totals.extra["carried_over"] == len(AT_8)


def test_a_file_that_the_new_release_ships_is_raced():
    bench, entries = run(new=plan(shipped_at=AT_8))
    assert bench.measured == [Candidate(point, SHIPPED) for point in AT_8]
    assert set(bench.raced) == set(AT_8)
    assert all(SHIPPED in raced for raced in bench.raced.values())
    assert {entries[point].config for point in AT_16} == {WINNER}


def test_an_incumbent_that_the_earlier_run_only_searched_is_raced():
    """Its time in the search cannot be compared with the winner's time in the race."""
    searched = [
        Trial(Candidate(point, SHIPPED), compiled(SHIPPED), Measurement(Status.OK, 91.0))
        for point in AT_8
    ]
    bench, _ = run(new=plan(shipped_at=AT_8), old=earlier(searched))
    assert not bench.measured
    assert set(bench.raced) == set(AT_8)


def test_a_run_before_hashes_were_kept_has_no_time_to_give():
    old = earlier()
    unknown = [replace(t, compiled=replace(t.compiled, code="")) for t in old.trials]
    bench, entries = run(old=replace(old, trials=unknown))
    assert len(bench.measured) == len(POINTS) * len(TIMES)
    assert set(bench.raced) == set(POINTS)
    assert bench.totals.extra["carried_over"] == 0


def test_a_kernel_that_gave_wrong_results_is_checked_again():
    wrong = Trial(
        Candidate(POINTS[0], DEFAULT), compiled(DEFAULT), Measurement(Status.WRONG_RESULT)
    )
    revalidation = Revalidation(earlier([wrong]), plan())
    assert revalidation.known(wrong.candidate, wrong.compiled) is None

"""What a run keeps and says where candidates were lost: a mishap is no verdict on anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from unittest.mock import MagicMock

import gemm_cases
import pytest
from cases import H200, trial

from tuner.diagnose import launches
from tuner.errors import MeasurerFailed, NothingFits
from tuner.families.check import CheckedEntry
from tuner.families.dense_gemm.check import GemmCheck
from tuner.families.fused_moe.choose import MoeChooser, MoePolicy
from tuner.families.fused_moe.problem import Gemm
from tuner.families.scans.choose import OwnChoice, ScanChooser
from tuner.families.scans.chunk_scan.problem import SsdKernel
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.registry import family_of
from tuner.problems.results import (
    UNCHECKED,
    Compiled,
    Entry,
    Measurement,
    Status,
    Totals,
    Trial,
    untimed,
)
from tuner.tuning.gains import gains
from tuner.tuning.pointwise import PointwiseChooser, Policy
from tuner.tuning.tune import FixedStrategy, Outcome, RunGoal, tune

SIZES = (8, 16)
POINTS = sorted(Point(size, gemm) for size in SIZES for gemm in Gemm)
WORDS = "crashed twice: CUDA error: unspecified launch failure"
Us = Callable[[Point, Config], float | str | None]  # microseconds, or why there are none


def config(block_m: int, n: int) -> Config:
    return Config({"BLOCK_SIZE_M": block_m, "BLOCK_SIZE_N": n})


DEFAULT, SHIPPED, FAST, WIDE = config(16, 1), config(16, 2), config(16, 3), config(64, 4)
SLOW = config(32, 5)
FITS = Compiled(Status.OK, shared_bytes=1024)
TRIED = {DEFAULT: 100.0, SHIPPED: 80.0, FAST: 50.0, WIDE: 60.0, SLOW: 150.0}


def lost(candidate: Candidate, *, compiling: bool = False) -> Trial:
    compiled = Compiled(Status.CRASHED if compiling else Status.OK, detail=WORDS)
    return Trial(candidate, compiled, Measurement(Status.CRASHED, detail=WORDS))


def tried(without: Callable[[Candidate], bool] = lambda candidate: False) -> list[Trial]:
    """Trials of all configurations; some were lost."""
    some = [trial(point, one, us) for point in POINTS for one, us in TRIED.items()]
    return [lost(one.candidate) if without(one.candidate) else one for one in some]


def goal(*, shipped: bool = False, previous: Config | None = None) -> RunGoal:
    named = {"default": DEFAULT, **({"shipped": SHIPPED} if shipped else {})}
    incumbents = {point: dict(named) for point in POINTS}
    stored = dict.fromkeys(POINTS, previous) if previous else {}
    chooser = MoeChooser(incumbents, MoePolicy(0.0), SIZES, previous=stored)
    return RunGoal(POINTS, incumbents, chooser, stored)


class Idle:
    """A bench for a run whose candidates all have trials."""

    def __init__(self) -> None:
        self.totals = Totals()

    def submit(self, candidates: Sequence[Candidate]) -> None:
        assert not candidates

    def poll(self, wait: bool) -> list[Trial]:
        return []


def racing(us: Us) -> Callable[[Sequence[Candidate], int], dict[Candidate, Measurement]]:
    """A race with these times. What has words in place of a time is lost."""

    def measured(one: Candidate) -> Measurement:
        time = us(one.point, one.config)
        if isinstance(time, str):
            return Measurement(Status.CRASHED, detail=time)
        return Measurement(Status.OK, time) if time else Measurement(Status.WRONG_RESULT)

    return lambda candidates, rounds: {one: measured(one) for one in candidates}


def run(trials: Sequence[Trial], race: Us | None = None, asked: RunGoal | None = None) -> Outcome:
    return done(trials, race, asked)[0]


def done(
    trials: Sequence[Trial], race: Us | None = None, asked: RunGoal | None = None
) -> tuple[Outcome, Totals]:
    bench, listed = Idle(), FixedStrategy([one.candidate for one in trials])
    found = tune(asked or goal(), listed, bench, trials, lambda _: None, race=race and racing(race))
    return found, bench.totals


def by_size(entries: Sequence[Entry]) -> dict[int, set[Config]]:
    return {
        size: {entry.config for entry in entries if entry.point.batch_size == size}
        for size in SIZES
    }


def same(point: Point, one: Config) -> float:
    return TRIED[one]


# Incumbents


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize("race", [None, same])
def test_where_the_incumbent_was_lost_it_stays_and_no_gain_is_told(race, compiling):
    of_one_gemm = Candidate(POINTS[0], DEFAULT)
    trials = [one for one in tried() if one.candidate != of_one_gemm]
    found, totals = done([*trials, lost(of_one_gemm, compiling=compiling)], race)
    assert by_size(found.entries) == {8: {DEFAULT}, 16: {FAST}}  # gemms are chosen together
    first, second, *others = found.entries
    for entry in (first, second):
        assert (entry.status, entry.median_us) == (Status.INCUMBENT, None)
        assert entry.reason == f"the default configuration was not compared: {WORDS}"
    assert first.incumbents["default"].status is Status.CRASHED
    assert [one.size for one in gains(found.entries)] == ["M=16"]
    assert not any("cannot run" in entry.reason for entry in found.entries)
    assert {entry.status for entry in others} == {Status.OK}
    assert found.mishaps == [
        f"1 candidate was lost to mishaps, and the next run tries again: {WORDS}"
    ]
    assert totals.extra == {"lost": 1}


@pytest.mark.parametrize("race", [None, same])
def test_what_the_kernel_does_not_take_was_not_timed_and_stays(race):
    two, why = goal(shipped=True), "sglang 1.0: kernel takes no config key 'FOO'"
    of_one_gemm = Candidate(POINTS[0], SHIPPED)
    trials = [one for one in tried() if one.candidate != of_one_gemm]
    trials.append(untimed(of_one_gemm, Compiled(Status.UNSUPPORTED, detail=why)))
    found, totals = done(trials, race, asked=two)
    assert by_size(found.entries)[8] == {SHIPPED}
    for entry in found.entries[:2]:
        assert (entry.status, entry.median_us) == (Status.INCUMBENT, None)
        assert entry.reason == f"the shipped configuration was not compared: {why}"
        assert not entry.incumbents["shipped"].cannot_run
    assert [one.size for one in gains(found.entries)] == ["M=16"]
    assert found.mishaps == [
        "1 entry of the engine was not timed, because the kernel as it is read here does not take "
        f"it, and stays where servers run it: {why}"
    ]
    assert totals.extra == {}


def test_what_really_cannot_run_is_replaced_as_ever():
    trials = [one for one in tried() if one.candidate.config != DEFAULT]
    trials += [trial(point, DEFAULT, None) for point in POINTS]
    found, totals = done(trials)
    assert by_size(found.entries) == {8: {FAST}, 16: {FAST}}
    assert {entry.reason for entry in found.entries} == {
        "the default configuration cannot run here"
    }
    assert (found.mishaps, totals.extra) == ([], {})


def test_only_what_the_engine_runs_must_be_compared():
    two = goal(shipped=True)
    found = run(tried(lambda c: c.config == DEFAULT), asked=two)
    assert by_size(found.entries) == {8: {FAST}, 16: {FAST}}
    found = run(tried(lambda c: c.config == SHIPPED), asked=two)
    assert by_size(found.entries) == {8: {SHIPPED}, 16: {SHIPPED}}


def test_a_stored_entry_which_was_compared_once_stays():
    found = run(tried(lambda c: c.config == DEFAULT), asked=goal(previous=WIDE))
    assert by_size(found.entries) == {8: {WIDE}, 16: {WIDE}}
    assert {(e.status, e.median_us) for e in found.entries} == {(Status.OK, 60.0)}
    both = run(tried(lambda c: c.config in (DEFAULT, WIDE)), asked=goal(previous=WIDE))
    assert by_size(both.entries) == {8: {DEFAULT}, 16: {DEFAULT}}


def test_points_that_stand_alone_are_kept_alone():
    at = [gemm_cases.point(size) for size in SIZES]
    default, fast = gemm_cases.tile(), gemm_cases.tile(16, 32)
    baselines = gemm_cases.baselines(dict.fromkeys(SIZES, {"default": default}))
    chooser = PointwiseChooser(baselines, Policy(0.0, 0.0), at)
    trials = [lost(Candidate(at[0], default)), gemm_cases.trial(16, default, 30.0)]
    trials += [gemm_cases.trial(size, fast, 20.0) for size in SIZES]
    found = run(trials, asked=RunGoal(at, baselines.configs, chooser))
    assert [entry.config for entry in found.entries] == [default, fast]
    assert "was not compared" in found.entries[0].reason


@pytest.mark.parametrize("where", [1, 8])
def test_a_scan_whose_engine_chooses_is_compared_with_all_that_it_chooses_from(where):
    first, asked = Point(1, SsdKernel.SCAN, 128), Point(8, SsdKernel.SCAN, 1024)
    slow, own, fast = (gemm_cases.tile(m) for m in (16, 32, 64))
    times = {slow: 30.0, own: 20.0, fast: 10.0}
    trials = [trial(point, one, us) for point in (first, asked) for one, us in times.items()]
    gone = Candidate(first if where == 1 else asked, slow)
    trials = [lost(gone) if one.candidate == gone else one for one in trials]
    chooser = ScanChooser(
        {SsdKernel.SCAN: OwnChoice(None, [slow, own], first)}, Policy(0.0, 0.0), [asked], {}
    )
    (entry,) = chooser.choose(trials)
    unknown = where == 1
    assert (entry.status is Status.INCUMBENT) is unknown
    assert entry.config == (own if unknown else fast)
    assert ("was not compared" in entry.reason) is unknown


# All is lost


def test_a_run_that_lost_all_fails_with_the_words_of_the_device():
    with pytest.raises(MeasurerFailed, match="20 of 20 candidates .*unspecified launch failure"):
        run(tried(lambda c: True))
    with pytest.raises(MeasurerFailed, match=r"5 of 20 .*run it again"):
        run(tried(lambda c: c.point == POINTS[0]))


# Races


@pytest.mark.parametrize("words", ["in the race: OutOfMemoryError", WORDS])
def test_a_race_that_fails_costs_its_point_the_race(words):
    def race(point: Point, one: Config) -> float | str:
        return words if point == POINTS[0] else 2 * TRIED[one]

    found, totals = done(tried(), race)
    assert by_size(found.entries) == {8: {FAST}, 16: {FAST}}
    assert [entry.median_us for entry in found.entries] == [50.0, 100.0, 100.0, 100.0]
    assert found.mishaps == [
        f"1 of 4 points keep the times of the search, because their race failed: {words}"
    ]
    assert totals.extra == {"unraced": 1}


def test_what_only_a_race_would_have_compared_is_not_chosen_without_it():
    def unchecked(one: Trial) -> Trial:
        return replace(one, measurement=replace(one.measurement, detail=f"{UNCHECKED}; 1 us more"))

    trials = [
        unchecked(t)
        if t.candidate.config in (FAST, DEFAULT) and t.candidate.point == POINTS[0]
        else t
        for t in tried()
    ]
    found = run(trials, lambda point, one: WORDS if point.batch_size == 8 else TRIED[one])
    assert by_size(found.entries) == {8: {WIDE}, 16: {FAST}}
    assert [one.size for one in gains(found.entries)] == ["M=8", "M=16"]  # the default has a time


def test_races_end_where_no_other_would_succeed():
    asked: list[Point] = []

    def race(point: Point, one: Config) -> float:
        asked.append(point)
        if point == POINTS[1]:
            raise MeasurerFailed("101 measuring processes were lost in a row")
        return 2 * TRIED[one]

    found, totals = done(tried(), race)
    assert set(asked) == set(POINTS[:2])
    assert [entry.median_us for entry in found.entries] == [100.0, 50.0, 50.0, 50.0]
    assert totals.extra == {"unraced": 3}


def test_what_is_lost_in_a_race_alone_is_not_chosen():
    found = run(tried(), lambda p, one: WORDS if one == FAST else TRIED[one])
    assert by_size(found.entries) == {8: {WIDE}, 16: {WIDE}}
    found = run(tried(), lambda p, one: WORDS if one == DEFAULT else TRIED[one])
    assert by_size(found.entries) == {8: {DEFAULT}, 16: {DEFAULT}}


def test_gemms_whose_races_lost_what_they_share_keep_the_times_of_the_search():
    def race(point: Point, one: Config) -> float | str:
        left = 16 if point.part is Gemm.UP else 64
        return TRIED[one] if one["BLOCK_SIZE_M"] == left else WORDS

    found, totals = done(tried(), race)
    assert totals.extra == {"lost": 8, "unraced": 4}
    assert by_size(found.entries) == {8: {DEFAULT}, 16: {DEFAULT}}
    assert all("was not compared" in entry.reason for entry in found.entries)
    # Where nothing is left that runs together, the next run has the trials and may race again.
    with pytest.raises(MeasurerFailed, match="run it again"):
        run([one for one in tried() if one.candidate.config != SLOW], race)


def test_a_wrong_result_in_a_race_is_a_verdict():
    with pytest.raises(NothingFits):
        run(tried(), lambda point, one: None)
    found = run(tried(), lambda p, one: {DEFAULT: WORDS, FAST: None}.get(one, TRIED[one]))
    assert by_size(found.entries) == {8: {DEFAULT}, 16: {DEFAULT}}


# What only compiles


def test_an_entry_whose_compiler_was_lost_is_not_called_one_that_cannot_run():
    point = gemm_cases.point(8)
    about = "file.json", gemm_cases.BLOCKS, point.part, 8, gemm_cases.tile()
    refused, gone = (
        Compiled(Status.COMPILE_ERROR, detail="no"),
        lost(Candidate(point, about[-1]), compiling=True),
    )
    entries = [CheckedEntry(*about, one) for one in (FITS, refused, gone.compiled)]
    check = GemmCheck(H200, entries)
    assert check.closing().endswith(": 1 cannot run, 1 not checked")
    assert [one["fits"] for one in check.as_json()["entries"]] == [True, False, None]
    assert GemmCheck(H200, [entries[0], entries[2]]).closing().endswith(": 1 not checked")
    assert not GemmCheck(H200, [entries[2]]).fits  # nobody said that it does


def test_a_launch_whose_compiler_was_lost_is_not_said_to_need_other_bytes(monkeypatch):
    candidate = Candidate(gemm_cases.point(8), gemm_cases.tile())
    launched = [
        ("default", candidate, FITS),
        ("default", candidate, lost(candidate, compiling=True).compiled),
    ]
    monkeypatch.setattr(launches, "own_launches", lambda prepared, workbench: launched)
    monkeypatch.setattr(launches, "prepare", lambda request: None)
    failed: dict[str, str] = {}
    found = launches._compiled(7, [gemm_cases.BLOCKS], MagicMock(), H200, failed)
    assert (found.compiled, failed) == (1, {family_of(gemm_cases.BLOCKS).title: WORDS})

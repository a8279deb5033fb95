"""The loop: nothing is tried twice, stored trials answer first, races decide."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest
from cases import trial

from tuner.errors import NothingFits
from tuner.families.fused_moe.both_gemms import FINAL_BLOCKS, FINALISTS
from tuner.families.fused_moe.choose import MoeChooser, MoePolicy
from tuner.families.fused_moe.problem import Gemm
from tuner.problems.points import TRITON, Candidate, Config, Point
from tuner.problems.results import Compiled, Entry, Measurement, Status, Totals, Trial
from tuner.tuning.tune import RACE_ROUNDS, FixedStrategy, RunGoal, tune

SIZES = (8, 16)
POINTS = [Point(size, gemm) for size in SIZES for gemm in Gemm]


def config(block_m: int, n: int = 0) -> Config:
    return Config({"BLOCK_SIZE_M": block_m, "BLOCK_SIZE_N": n})


DEFAULT, OTHER = config(16, 1), config(16, 2)


def ok(us: float) -> Measurement:
    return Measurement(Status.OK, us)


def us_of(candidate: Candidate) -> float:
    """Lower BLOCK_SIZE_N is slower: OTHER beats DEFAULT."""
    return 100.0 - candidate.config["BLOCK_SIZE_N"] + candidate.point.batch_size


class MemoryBench:
    """Answers `at_once` of what waits at each poll, last submitted first."""

    def __init__(self, at_once: int = 3, polls: int | None = None) -> None:
        self.submitted: list[Candidate] = []
        self.totals = Totals()
        self._waiting: list[Candidate] = []
        self._at_once, self._polls = at_once, polls

    def submit(self, candidates: Sequence[Candidate]) -> None:
        self.submitted += candidates
        self._waiting += candidates

    def poll(self, wait: bool) -> list[Trial]:
        if self._polls is not None:
            self._polls -= 1
            if self._polls < 0:
                raise KeyboardInterrupt
        some = [self._waiting.pop() for _ in range(min(self._at_once, len(self._waiting)))]
        return [trial(c.point, c.config, us_of(c)) for c in some]


class MemoryJournal:
    def __init__(self, trials: Iterable[Trial] = ()) -> None:
        self.kept = list(trials)

    def trials(self) -> Sequence[Trial]:
        return list(self.kept)

    def add(self, trials: Sequence[Trial]) -> None:
        self.kept += trials


class Waves:
    """Asks for a wave when all of the last one is told."""

    def __init__(self, waves: Sequence[Sequence[Candidate]]) -> None:
        self.told: list[Candidate] = []
        self._waves = [list(wave) for wave in waves]
        self._open: set[Candidate] = set()

    def ask(self) -> list[Candidate]:
        if self._open or not self._waves:
            return []
        wave = self._waves.pop(0)
        self._open = set(wave) - set(self.told)
        return wave

    def tell(self, candidate: Candidate, measurement: Measurement) -> None:
        self.told.append(candidate)
        self._open.discard(candidate)


class MemoryRacer:
    def __init__(self, us: Callable[[Point, Config], float | None]) -> None:
        self.raced: dict[Point, list[Config]] = {}
        self.rounds: set[int] = set()
        self._us = us

    def race(self, candidates: Sequence[Candidate], rounds: int) -> dict[Candidate, Measurement]:
        self.raced[candidates[0].point] = [one.config for one in candidates]
        self.rounds.add(rounds)
        times = {one: self._us(one.point, one.config) for one in candidates}
        return {one: ok(us) for one, us in times.items() if us is not None}


def goal(requested: Sequence[Point] = POINTS, noise: float = 0.0) -> RunGoal:
    incumbents = {point: {"default": DEFAULT} for point in POINTS}
    sizes = {point.batch_size for point in requested}
    return RunGoal(requested, incumbents, MoeChooser(incumbents, MoePolicy(noise), sizes))


def waves() -> list[list[Candidate]]:
    return [
        [Candidate(point, config(16, n)) for n in ns for point in POINTS]
        for ns in ((1, 2, 3), (4, 5), (5, 6, 7))  # DEFAULT among them, and one asked for twice
    ]


def run(strategy, bench, journal, racer=None, goal=goal()):
    found = tune(goal, strategy, bench, journal.trials(), journal.add, race=racer and racer.race)
    return found.entries


def chosen(entries) -> set[Config]:
    return {entry.config for entry in entries}


def failing(status: Status, details: Sequence[str]) -> str:
    """What a run says whose candidates all fail so, in turn."""
    journal = MemoryJournal(
        Trial(c, Compiled(status, shared_bytes=len(text), detail=text), Measurement(status))
        for c, text in zip(dict.fromkeys(waves()[0]), itertools.cycle(details), strict=False)
    )
    with pytest.raises(NothingFits) as error:
        run(Waves(waves()[:1]), MemoryBench(), journal)
    return str(error.value)


def test_a_reason_that_all_candidates_share_is_told():
    said = failing(Status.COMPILE_ERROR, ["CompilationError: no fp8e4nv"])
    assert said.endswith(": all 12 that were tried end so: CompilationError: no fp8e4nv")
    needs = [f"needs {n} bytes of shared memory, limit 101,376" for n in ("9,000,000", "147,456")]
    said = failing(Status.OUT_OF_RESOURCES, needs)
    assert said.endswith(f": all 12 that were tried end so: {needs[1]}")
    mixed = failing(Status.COMPILE_ERROR, ["one", "other", "one"])
    assert mixed.endswith(": 8 of 12 that were tried end so: one")


def test_nothing_is_measured_twice():
    bench = MemoryBench()
    entries = run(Waves(waves()), bench, MemoryJournal())
    assert len(bench.submitted) == len(set(bench.submitted)) == 7 * len(POINTS)
    assert chosen(entries) == {config(16, 7)}


def test_answers_of_one_poll_are_told_in_the_order_of_asking():
    strategy = Waves(waves()[:1])
    run(strategy, MemoryBench(at_once=100), MemoryJournal())
    asked = [Candidate(point, DEFAULT) for point in POINTS]
    asked += [c for c in waves()[0] if c not in asked]
    assert strategy.told == asked


def test_answers_of_several_askings_are_told_in_the_order_of_asking():
    class OneThenAll(MemoryBench):
        def poll(self, wait: bool) -> list[Trial]:
            some = super().poll(wait)
            self._at_once = 100
            return some

    class Eager(Waves):
        def ask(self) -> list[Candidate]:
            return self._waves.pop(0) if self._waves else []

    strategy = Eager([[Candidate(point, OTHER) for point in POINTS]])
    run(strategy, OneThenAll(at_once=1), MemoryJournal())
    *rest, last = [Candidate(point, DEFAULT) for point in POINTS]  # the last is answered alone
    assert strategy.told == [last, *rest, *(Candidate(point, OTHER) for point in POINTS)]


def test_every_trial_is_kept_before_it_is_told():
    journal = MemoryJournal()

    class Watching(Waves):
        def tell(self, candidate: Candidate, measurement: Measurement) -> None:
            assert candidate in {kept.candidate for kept in journal.kept}
            super().tell(candidate, measurement)

    strategy = Watching(waves())
    run(strategy, MemoryBench(), journal)
    assert set(strategy.told) == {kept.candidate for kept in journal.kept}


@pytest.mark.parametrize("polls", [0, 1, 4, 7])
def test_an_interrupted_run_goes_on_where_it_stopped(polls):
    whole = run(Waves(waves()), MemoryBench(), MemoryJournal())
    journal = MemoryJournal()
    with pytest.raises(KeyboardInterrupt):
        run(Waves(waves()), MemoryBench(polls=polls), journal)
    finished = {kept.candidate for kept in journal.kept}
    assert len(finished) < 7 * len(POINTS)
    bench = MemoryBench()
    assert run(Waves(waves()), bench, journal) == whole
    assert finished.isdisjoint(bench.submitted)
    assert len(finished) + len(bench.submitted) == 7 * len(POINTS)


def test_a_finished_run_needs_no_bench():
    journal = MemoryJournal()
    whole = run(Waves(waves()), MemoryBench(), journal)
    bench = MemoryBench()
    assert run(Waves(waves()), bench, journal) == whole
    assert bench.submitted == []


def test_the_race_overrules_the_search():
    def slow_seven(point: Point, one: Config) -> float:
        return 200.0 if one == config(16, 7) else 100.0 - one["BLOCK_SIZE_N"]

    racer = MemoryRacer(slow_seven)
    entries = run(Waves(waves()), MemoryBench(), MemoryJournal(), racer)
    assert chosen(entries) == {config(16, 6)}
    assert {entry.median_us for entry in entries} == {94.0}
    assert racer.rounds == {RACE_ROUNDS}
    assert {entry.incumbents["default"].median_us for entry in entries} == {99.0}


def test_every_incumbent_is_raced_and_stands_within_the_noise():
    racer = MemoryRacer(lambda point, one: 100.0 - one["BLOCK_SIZE_N"] / 100)
    entries = run(Waves(waves()), MemoryBench(), MemoryJournal(), racer, goal(noise=0.01))
    assert set(racer.raced) == set(POINTS)
    assert all(DEFAULT in raced for raced in racer.raced.values())
    assert chosen(entries) == {DEFAULT}


def test_what_the_race_could_not_time_is_not_chosen():
    racer = MemoryRacer(lambda point, one: None if one["BLOCK_SIZE_N"] == 7 else 50.0)
    entries = run(Waves(waves()), MemoryBench(), MemoryJournal(), racer)
    assert config(16, 7) not in chosen(entries)


def test_why_an_incumbent_has_no_time_is_known_after_the_race():
    """The largest sizes of an L40S: the engine's default does not fit."""
    known = [trial(point, DEFAULT, None) for point in POINTS]
    racer = MemoryRacer(lambda point, one: 50.0)
    entries = run(Waves(waves()), MemoryBench(), MemoryJournal(known), racer)
    found = {entry.incumbents["default"] for entry in entries}
    assert {(one.status, one.median_us) for one in found} == {(Status.OUT_OF_RESOURCES, None)}
    assert {entry.reason for entry in entries} == {"the default configuration cannot run here"}


def test_only_requested_points_are_raced_and_all_get_an_entry():
    requested = [point for point in POINTS if point.batch_size == 8]
    racer = MemoryRacer(lambda point, one: 100.0 - one["BLOCK_SIZE_N"])
    listed = FixedStrategy([Candidate(point, OTHER) for point in requested])
    entries = run(listed, MemoryBench(), MemoryJournal(), racer, goal(requested))
    assert set(racer.raced) == set(requested)
    assert [entry.point for entry in entries] == sorted(POINTS)
    assert {e.config for e in entries if e.point.batch_size == 8} == {OTHER}


def test_finalists_are_few_and_hold_incumbents_winners_and_neighbours():
    trials = [
        trial(point, config(block, n), 100.0 + block + n + point.batch_size % 16)
        for point in POINTS
        for block in (16, 32, 64)
        for n in range(10)
    ]
    incumbents = {point: {"default": config(64, 9)} for point in POINTS}
    best_at_16 = [trial(point, config(16, 0), 10.0) for point in POINTS if point.batch_size == 16]
    best_at_8 = [trial(point, config(32, 5), 20.0) for point in POINTS if point.batch_size == 8]
    trials += best_at_16 + best_at_8
    chooser = MoeChooser(incumbents, MoePolicy(noise=0.0), SIZES)
    found = chooser.finalists(trials, chooser.choose(trials))
    for point in POINTS:
        here = {t.candidate.config for t in found if t.candidate.point == point}
        assert {config(64, 9), config(16, 0), config(32, 5)} <= here
        assert len(here) <= FINAL_BLOCKS * FINALISTS + 3


def test_a_final_has_no_candidate_without_a_time():
    failed = Trial(
        Candidate(POINTS[0], config(16, 9)),
        Compiled(Status.OUT_OF_RESOURCES),
        Measurement(Status.OUT_OF_RESOURCES),
    )
    trials = [failed, *(trial(point, OTHER, 5.0) for point in POINTS)]
    incumbents = {point: {"default": config(16, 9)} for point in POINTS}
    chooser = MoeChooser(incumbents, MoePolicy(noise=0.0), SIZES)
    found = chooser.finalists(trials, chooser.choose(trials))
    assert failed not in found
    assert len(found) == len(POINTS)


FASTER, REFUSING = "deep_gemm", "flashinfer"


class WithBackends(MemoryBench):
    """Times one backend, and another one refuses."""

    def poll(self, wait: bool) -> list[Trial]:
        some, self._waiting = self._waiting, []
        return [self._trial(candidate) for candidate in some]

    def _trial(self, candidate: Candidate) -> Trial:
        if candidate.backend == REFUSING:
            refused = Measurement(Status.UNSUPPORTED, detail="no kernel")
            return Trial(candidate, Compiled(Status.OK), refused)
        us = 50.0 if candidate.backend == FASTER else us_of(candidate)
        return Trial(candidate, Compiled(Status.OK), ok(us))


class BackendRacer(MemoryRacer):
    def race(self, candidates: Sequence[Candidate], rounds: int) -> dict[Candidate, Measurement]:
        self.raced[candidates[0].point] = [one.backend for one in candidates]
        return {
            one: ok(45.0 if one.backend == FASTER else self._us(one.point, one.config))
            for one in candidates
        }


def test_other_backends_are_tried_once_raced_and_told_and_choose_nothing():
    point, strategy, bench = POINTS[0], Waves(waves()), WithBackends()
    asked = replace(goal(), backends={point: (FASTER, REFUSING)})
    journal, heard = MemoryJournal(), []

    def tell(entries: list[Entry], trials: Sequence[Trial]) -> list[Entry]:
        heard.extend(one for one in trials if one.candidate.backend != TRITON)
        return entries

    racer = BackendRacer(lambda point, one: us_of(Candidate(point, one)))
    race = racer.race
    whole = tune(asked, strategy, bench, journal.trials(), journal.add, race=race, tell=tell)
    entries = whole.entries
    assert chosen(entries) == {config(16, 7)}
    assert {one.backend for one in strategy.told} == {TRITON}
    assert sum(one.backend == FASTER for one in bench.submitted) == 1
    others = [name for name in racer.raced[point] if name != TRITON]
    assert others == [FASTER]  # the other has no time
    assert {FASTER, REFUSING}.isdisjoint(racer.raced[POINTS[1]])
    told = {trial.candidate.backend: trial.measurement for trial in heard}
    assert (told[FASTER].median_us, told[REFUSING].status) == (45.0, Status.UNSUPPORTED)
    again = WithBackends()
    trials = journal.trials()
    assert tune(asked, Waves(waves()), again, trials, journal.add, race=race).entries == entries
    assert again.submitted == []  # stored trials answer, those of backends too

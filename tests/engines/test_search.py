"""The search: what it finds, what it spends, and that it can be resumed."""

from __future__ import annotations

import math
import random
from collections import Counter
from statistics import median

import pytest
from cases import H200, INT8_RECORDING
from hypothesis import example, given, settings
from hypothesis import strategies as st
from real_sglang import package
from tiers import only

from tuner.engines.sglang.package import SGLang
from tuner.families.attention.problem import AttentionPart
from tuner.families.fused_moe.engine import ShippedFile, moe_engine
from tuner.families.fused_moe.predict import Predictor
from tuner.families.fused_moe.problem import Gemm
from tuner.families.fused_moe.recording import Recording, read_recording
from tuner.families.fused_moe.space import seeds_for, space_for, spaces_at
from tuner.families.fused_moe.tuning import FORESEEN
from tuner.measure.recording import Replay
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Measurement, Status
from tuner.tuning.request import Effort
from tuner.tuning.search import Budget, Search, budget_for
from tuner.tuning.space import Space

FAILURES = [
    Status.COMPILE_ERROR,
    Status.COMPILE_TIMEOUT,
    Status.OUT_OF_RESOURCES,
    Status.WRONG_RESULT,
    Status.CRASHED,
    Status.NOT_RECORDED,
]

Results = dict[Candidate, Measurement]


def best_us(results: Results, point: Point) -> float:
    return min(m.median_us for c, m in results.items() if c.point == point and m.median_us)


# Against landscapes made up here: any axes, any failures, any order of answers


AXES = {"A": (1, 2, 4, 8, 16), "B": (32, 64, 128), "C": (1, 2, 3, 4), "D": (0, 1)}
SPACE = Space(AXES, growing=frozenset({"A", "B"}))
POINTS = [Point(m, gemm) for m in (1, 16, 256) for gemm in Gemm]
BUDGET = Budget(per_point=20, kernels=60, seeds=4, per_round=3)


def landscape(number: int, failing: float = 0.2) -> Results:
    """A result for every candidate: a bowl a point, with noise, and failures by chance."""
    rng = shuffled(number)
    results: Results = {}
    for point in POINTS:
        bottom = {name: rng.randrange(len(values)) for name, values in AXES.items()}
        for config in SPACE.configs():
            steps = (abs(at - bottom[name]) for name, at in SPACE.indices(config).items())
            time_us = 100 * 1.3 ** sum(steps) * rng.uniform(0.98, 1.02)
            failed = rng.random() < failing
            status = rng.choice(FAILURES) if failed else Status.OK
            timed = None if failed else time_us
            results[Candidate(point, config)] = Measurement(status, timed, timed)
    return results


def make(seed: int = 0, budget: Budget = BUDGET) -> Search:
    spaces = dict.fromkeys(Gemm, SPACE)
    seeds = {POINTS[0]: list(SPACE.configs()[:3]), POINTS[3]: list(SPACE.configs()[-5:])}
    return Search(spaces, POINTS, seeds, budget, seed)


def finish(search: Search, results: Results, shuffle: random.Random | None = None) -> Results:
    """Answer everything asked; with `shuffle`, one answer at a time in any order."""
    tried: Results = {}
    pending = search.ask()
    while pending:
        at = shuffle.randrange(len(pending)) if shuffle else 0
        candidate = pending.pop(at)
        assert candidate not in tried, "proposed twice"
        tried[candidate] = results[candidate]
        search.tell(candidate, results[candidate])
        if shuffle or not pending:
            pending += search.ask()
    return tried


def shuffled(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311


LANDSCAPES = st.integers(0, 10_000)


@settings(max_examples=15)
@given(LANDSCAPES, st.floats(0, 1), st.integers(1, 100), st.integers(1, 30))
def test_the_budget_is_kept_whatever_fails(
    number: int, failing: float, kernels: int, per_point: int
) -> None:
    budget = Budget(per_point, kernels, seeds=4, per_round=3)
    tried = finish(make(number, budget), landscape(number, failing), shuffled(number))
    assert len({(c.point.part, c.config) for c in tried}) <= kernels
    most = per_point + 2 * budget.nearby
    assert max(Counter(c.point for c in tried).values(), default=0) <= most
    assert all(SPACE.legal(c.config) for c in tried)


@settings(max_examples=6)
@given(LANDSCAPES)
@example(4292)
def test_the_order_of_answers_changes_nothing(number: int) -> None:
    results = landscape(number)
    # Where the smallest tile does not fit, none does, and a search ends early.
    smallest = SPACE.configs()[0]
    results |= {
        candidate: Measurement(Status.COMPILE_ERROR)
        for candidate, measured in results.items()
        if measured.status is Status.OUT_OF_RESOURCES
        and SPACE.at_least_as_large(smallest, candidate.config)
    }
    in_order = finish(make(number), results)
    assert len(in_order) > 60
    for order in range(2):
        assert finish(make(number), results, shuffled(order)) == in_order


@settings(max_examples=6)
@given(LANDSCAPES, st.randoms(use_true_random=False))
def test_a_search_resumes_from_its_stored_results(number: int, rng: random.Random) -> None:
    results = landscape(number)
    whole = finish(make(number), results)
    stored = rng.sample(list(whole), rng.randrange(len(whole)))  # answers came in any order

    told_first = make(number)
    for candidate in stored:
        told_first.tell(candidate, results[candidate])
    assert finish(told_first, results).keys() == whole.keys() - set(stored)


def test_another_seed_searches_elsewhere() -> None:
    results = landscape(1)
    assert finish(make(1), results).keys() != finish(make(2), results).keys()


def test_a_slow_compile_holds_up_one_point_only() -> None:
    results, search = landscape(3), make(3)
    slow = next(c for c in search.ask() if c.point == POINTS[0])
    waiting = make(3).ask()
    asked: list[Candidate] = []
    for candidate in waiting:
        if candidate != slow:
            search.tell(candidate, results[candidate])
    asked = search.ask()
    # All other points go on to their second round, and none of the first is asked for again.
    assert {c.point for c in asked} == set(POINTS) - {slow.point}
    assert not set(asked) & set(waiting)


def test_what_a_neighbour_finds_in_its_last_round_is_tried() -> None:
    """Both points spend their tries in one round, on other configurations."""
    small, large = Point(16, Gemm.UP), Point(32, Gemm.UP)
    some, others = SPACE.configs()[:4], SPACE.configs()[-4:]
    budget = Budget(per_point=4, kernels=8, seeds=4)
    search = Search({Gemm.UP: SPACE}, [small, large], {small: some, large: others}, budget, 0)
    times = {config: 10.0 + at for at, config in enumerate([*some, *others])}
    times[others[2]] = 1.0
    results = {
        Candidate(point, config): Measurement(Status.OK, us, us)
        for point in (small, large)
        for config, us in times.items()
    }
    tried = finish(search, results)
    assert Candidate(small, others[2]) in tried
    assert Candidate(large, some[0]) in tried
    assert len(tried) == 10


def test_results_that_were_not_asked_for_answer_later_proposals() -> None:
    results = landscape(4)
    incumbent = Candidate(POINTS[0], SPACE.configs()[0])  # a seed of that point
    search = make(4)
    search.tell(incumbent, results[incumbent])
    assert incumbent not in finish(search, results)


def test_seeds_come_first_and_are_snapped_into_the_space() -> None:
    point = Point(16, Gemm.UP)
    elsewhere = Config({"A": 5, "B": 999, "C": 2, "D": 0, "waves_per_eu": 2})
    search = Search({Gemm.UP: SPACE}, [point], {point: [elsewhere]}, BUDGET, 0)
    assert search.ask()[0].config == Config({"A": 4, "B": 128, "C": 2, "D": 0})


def test_parts_have_spaces_of_their_own_and_learn_from_their_own_points() -> None:
    short, long = (Point(4, AttentionPart.DECODE, 1, cached) for cached in (512, 8192))
    reduce = Point(4, AttentionPart.REDUCE, 1, 512)
    spaces = {AttentionPart.DECODE: SPACE, AttentionPart.REDUCE: Space({"W": (1, 2, 4, 8)})}
    best = SPACE.configs()[0]
    budget = Budget(per_point=8, kernels=100, seeds=2, per_round=3)
    search = Search(spaces, [short, long, reduce], {short: [best]}, budget, 0)
    tried: dict[Point, list[Config]] = {short: [], long: [], reduce: []}
    while asked := search.ask():
        for candidate in asked:
            tried[candidate.point].append(candidate.config)
            search.tell(candidate, Measurement(Status.OK, 1.0 if candidate.config == best else 9.0))
    assert best in tried[long]  # the winner at the next point of the same part
    assert set(tried[long]) <= set(SPACE.configs())
    assert sorted(tried[reduce]) == sorted(spaces[AttentionPart.REDUCE].configs())


def test_a_kernel_that_fails_is_not_tried_at_another_batch_size() -> None:
    points = [Point(m, Gemm.UP) for m in (1, 2, 4, 8)]
    bad = [config for config in SPACE.configs() if config["C"] == 3]
    search = Search({Gemm.UP: SPACE}, points, {points[0]: bad[:1]}, BUDGET, 0)
    first: dict[Config, int] = {}
    for wave in range(100):
        asked = search.ask()
        for candidate in asked:
            failed = candidate.config in bad
            if failed:
                # A point learns of another's failure one round late.
                assert wave - first.setdefault(candidate.config, wave) <= 1
            time_us = None if failed else 1.0
            status = Status.COMPILE_ERROR if failed else Status.OK
            search.tell(candidate, Measurement(status, time_us))
    assert first and not search.ask()


def test_nothing_larger_is_tried_than_what_ran_out_of_memory() -> None:
    point = Point(1, Gemm.UP)
    search = Search({Gemm.UP: SPACE}, [point], {}, BUDGET, 5)
    too_large: list[Config] = []
    while asked := search.ask():
        for c in (candidate.config for candidate in asked):
            assert not any(SPACE.at_least_as_large(c, other) for other in too_large)
        for candidate in asked:
            fits = candidate.config["A"] * candidate.config["B"] <= 128
            status = Status.OK if fits else Status.OUT_OF_RESOURCES
            search.tell(candidate, Measurement(status, 1.0 if fits else None))
            too_large += [] if fits else [candidate.config]
    assert too_large


def test_exhaustive_effort_tries_every_configuration() -> None:
    results = landscape(6)
    search = make(6, budget_for(Effort.EXHAUSTIVE, len(POINTS), len(SPACE)))
    assert finish(search, results).keys() == results.keys()


def test_a_point_is_searched_alone_when_there_is_only_one() -> None:
    point = POINTS[0]
    results = landscape(7, failing=0)
    search = Search({Gemm.UP: SPACE}, [point], {}, budget_for(Effort.STANDARD, 1, 120), 0)
    tried = finish(search, results)
    assert len(tried) == 40
    assert best_us(tried, point) == best_us(results, point)


def test_without_points_there_is_nothing_to_ask() -> None:
    assert Search({Gemm.UP: SPACE}, [], {}, BUDGET, 0).ask() == []


def test_efforts_grow() -> None:
    quick, standard, whole = (budget_for(effort, 10, 1244) for effort in Effort)
    assert quick.per_point < standard.per_point <= 40 < whole.per_point == 1244
    assert quick.kernels < standard.kernels <= 250 < whole.kernels


# A recording that neither search nor prediction was made with: int8 per channel, N = 64


@pytest.fixture(scope="module")
def recording() -> Recording:
    return read_recording(INT8_RECORDING)


@pytest.fixture(scope="module")
def corpus() -> list[ShippedFile]:
    """What sglang ships for other keys than the recording's and its twins."""
    engine = moe_engine(SGLang("0.5.16", package("0.5.16")))
    twins = {(256, 64), (257, 64)}
    return [f for f in engine.shipped() if (f.key.E, f.key.intermediate_size) not in twins]


def times_at(recording: Recording, point: Point, space: Space) -> dict[Config, float]:
    """Microseconds at a point: the median of all that run the same way, which differ by noise."""
    found: dict[Config, list[float]] = {}
    for candidate, trial in recording.trials.items():
        us = trial.measurement.median_us
        if candidate.point == point and us is not None:
            found.setdefault(space.settled(candidate.config), []).append(us)
    return {config: median(some) for config, some in found.items()}


def geomean(regrets: list[float]) -> float:
    return math.exp(sum(map(math.log1p, regrets)) / len(regrets)) - 1


@pytest.mark.parametrize("seed", only([0], [0, 1, 2]))
def test_search_misses_little(recording, corpus, seed):
    problem, points = recording.problem, recording.points
    spaces = {gemm: space_for(problem, H200, gemm) for gemm in Gemm}
    predictor = Predictor(H200, problem, corpus)
    at = spaces_at(points, problem, spaces)
    foreseen = {p: predictor.shortlist(p, at[p].configs(), FORESEEN) for p in points}
    seeds = seeds_for(at, problem, H200, spaces, corpus, foreseen=foreseen)
    budget = budget_for(Effort.STANDARD, len(points), 1920)
    search = Search(spaces, points, seeds, budget, seed, at, predictor.estimate_all)
    replay = Replay(recording, H200)
    found: dict[Point, dict[Config, float]] = {point: {} for point in points}
    kernels = set()
    while asked := search.ask():
        kernels |= {(one.point.part, one.config) for one in asked}
        replay.submit(asked)
        for candidate, compiled in replay.poll(wait=True):
            measurement = replay.measure(candidate, compiled)
            search.tell(candidate, measurement)
            if measurement.median_us is not None:
                found[candidate.point][candidate.config] = measurement.median_us
    regrets = []
    for point in points:
        times = times_at(recording, point, at[point])
        chosen = min(found[point], key=found[point].__getitem__)
        regrets.append(times[chosen] / min(times.values()) - 1)
    assert geomean(regrets) <= 0.003
    assert max(regrets) <= 0.02
    assert max(map(len, found.values())) <= 40 + 2 * budget.nearby
    assert len(kernels) <= 250


@pytest.mark.parametrize("files", only(["int8"], ["all", "int8", "none"]))
def test_prediction_is_near_even_with_few_files(recording, corpus, files):
    some = {"all": corpus, "int8": [f for f in corpus if f.key.dtype == "int8_w8a8"], "none": []}
    predictor = Predictor(H200, recording.problem, some[files])
    regrets = []
    for point in recording.points:
        ran = [t for c, t in recording.trials.items() if c.point == point and t.measurement.timed]

        def score(trial, point=point):
            measured = predictor.measure(Candidate(point, trial.candidate.config), trial.compiled)
            return measured.median_us

        chosen = min(ran, key=score)
        assert chosen.compiled.shared_bytes <= H200.shared_optin_bytes
        best_us = min(trial.measurement.median_us for trial in ran)
        regrets.append(chosen.measurement.median_us / best_us - 1)
    assert geomean(regrets) <= 0.06
    assert max(regrets) <= 0.15

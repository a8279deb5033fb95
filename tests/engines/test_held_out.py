"""Search and prediction on a recording that neither was made with: int8 per channel, N = 64."""

import math
from statistics import median

import pytest
from cases import H200, INT8_RECORDING
from real_sglang import package
from tiers import only

from tuner.engines.sglang.package import SGLang
from tuner.families.fused_moe.engine import ShippedFile, moe_engine
from tuner.families.fused_moe.predict import Predictor
from tuner.families.fused_moe.problem import Gemm
from tuner.families.fused_moe.recording import Recording, read_recording
from tuner.families.fused_moe.space import seeds_for, space_for, spaces_at
from tuner.families.fused_moe.tuning import FORESEEN
from tuner.measure.recording import Replay
from tuner.problems.points import Candidate, Config, Point
from tuner.tuning.request import Effort
from tuner.tuning.search import Search, budget_for
from tuner.tuning.space import Space


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
    replay = Replay(recording)
    found: dict[Point, dict[Config, float]] = {point: {} for point in points}
    while asked := search.ask():
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
    assert max(map(len, found.values())) <= 40
    assert replay.compiled_count <= 250


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

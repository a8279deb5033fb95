"""The search on recordings it was made with and on others, beside plain TPE and random search.

Run from the repository's root:
    .venv/bin/python benchmarks/held_out.py [--runs 20]
Prints the table of docs/results.md and writes every regret to benchmarks/results/held_out.json.
Every search gets the same number of tries at a point. What sglang ships for a recording's own key,
and for a key with an E one less or more and the same N, is left out of the seeds.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import optuna

from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.families.dense_gemm.engine import gemm_engine
from tuner.families.dense_gemm.predict import GemmPredictor
from tuner.families.dense_gemm.problem import DensePart as Dense
from tuner.families.dense_gemm.problem import parse_dense_gemm
from tuner.families.dense_gemm.space import gemm_space, space_at
from tuner.families.dense_gemm.space import seeds_for as gemm_seeds
from tuner.families.dense_gemm.tuning import BUDGETS
from tuner.families.dense_gemm.tuning import FORESEEN as GEMM_FORESEEN
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.fused_moe.predict import Predictor
from tuner.families.fused_moe.problem import Gemm
from tuner.families.fused_moe.recording import read_recording
from tuner.families.fused_moe.space import seeds_for as moe_seeds
from tuner.families.fused_moe.space import space_for, spaces_at
from tuner.families.fused_moe.tuning import FORESEEN
from tuner.measure.recording import decode, is_packed, read_packed, read_trials, unpack
from tuner.problems.points import Candidate, Config, Part, Point
from tuner.problems.results import Measurement, Status, Trial
from tuner.tuning.request import Effort
from tuner.tuning.search import Budget, Model, Search, budget_for
from tuner.tuning.space import Space

RECORDINGS = Path("tests/data/recordings")
SEEN = (
    "h200_E256_N256_K7168_top8_fp8w8a8_b128",
    "h100_N2112_K7168_fp8w8a8_b128",
    "h100_N3072_K1536_fp8w8a8_b128",
)
UNSEEN = (
    "h200_E256_N64_K7168_top8_int8w8a8",
    "h100_N5120_K4096_fp8w8a8_b128",
    "h100_N7168_K2048_fp8w8a8_b128",
)
# Recorded when the search was final. Later they decided how many tries a point gets.
LATER = (
    "h200_E128_N768_K2048_top8_bfloat16",
    "h200_E8_N3584_K4096_top2_fp8w8a8",
    "h200_E512_N64_K2048_top10_bfloat16",
    "h100_E128_N768_K2048_top8_bfloat16",
    "h100_E8_N3584_K4096_top2_fp8w8a8",
    "h100_E512_N64_K2048_top10_bfloat16",
)
ENGINE = find_engine("sglang==0.5.16")
RESULTS = Path("benchmarks/results/held_out.json")


@dataclass(frozen=True)
class Case:
    """One recording, and what the search knows before it begins."""

    name: str
    spaces: Mapping[Part, Space]
    at: Mapping[Point, Space]  # the space of each point
    seeds: Mapping[Point, Sequence[Config]]
    model: Model
    budget: Budget
    trials: Mapping[Candidate, Trial]  # of the points' spaces

    def measure(self, candidate: Candidate) -> Measurement:
        trial = self.trials.get(candidate)
        return trial.measurement if trial else Measurement(Status.NOT_RECORDED)

    def times(self, point: Point) -> dict[Config, float]:
        """The microseconds of everything that ran at a point."""
        return {
            candidate.config: trial.measurement.median_us
            for candidate, trial in self.trials.items()
            if candidate.point == point and trial.measurement.median_us is not None
        }


Found = dict[Point, dict[Config, float]]  # what was tried at each point; inf where it did not run
Contender = Callable[[Case, int], Found]


def pooled(trials: Mapping[Candidate, Trial], at: Mapping[Point, Space]) -> dict[Candidate, Trial]:
    """The trials of the points' spaces, each with the median time of all that run the same way.

    GROUP_SIZE_M beyond the rows of tiles changes nothing, so these times differ by noise alone.
    """
    found: dict[Candidate, list[float]] = {}
    for one, trial in trials.items():
        if trial.measurement.median_us is not None:
            same = Candidate(one.point, at[one.point].settled(one.config))
            found.setdefault(same, []).append(trial.measurement.median_us)
    return {
        one: timed(trial, statistics.median(found[one])) if one in found else trial
        for one, trial in trials.items()
        if at[one.point].legal(one.config)
    }


def moe_case(path: Path) -> Case:
    recording = read_recording(path)
    problem, points = recording.problem, recording.points
    device = find_device(recording.origin.device)
    engine = moe_engine(ENGINE)
    spaces = {gemm: space_for(problem, device, gemm) for gemm in Gemm}
    at = spaces_at(points, problem, spaces)
    twins = {(E, problem.N) for E in (problem.E - 1, problem.E, problem.E + 1)}
    files = [f for f in engine.shipped() if (f.key.E, f.key.intermediate_size) not in twins]
    predictor = Predictor(device, problem, files)
    seeds = moe_seeds(
        at,
        problem,
        device,
        spaces,
        files,
        known={p: [engine.default_config(problem, device, p.batch_size)] for p in points},
        foreseen={p: predictor.shortlist(p, at[p].configs(), FORESEEN) for p in points},
    )
    budget = budget_for(Effort.STANDARD, len(points), max(map(len, spaces.values())))
    trials = pooled(recording.trials, at)
    return Case(path.name, dict(spaces), at, seeds, predictor.estimate_all, budget, trials)


def gemm_case(path: Path) -> Case:
    data = read_packed(path)
    text = unpack(path, data) if is_packed(data) else decode(path, data)
    rows = csv.DictReader(io.StringIO(text, newline=""))
    (spec,) = dict.fromkeys(row["problem"] for row in rows)
    problem = parse_dense_gemm(spec)
    recording = read_trials(path, problem)
    device, engine = find_device("H100"), gemm_engine(ENGINE)
    kernels, predictor = engine.lift(), GemmPredictor(device, problem)
    space = gemm_space(
        problem,
        device,
        kernels.choices(problem, device.target),
        lambda config: engine.effective(problem, config, device.target),
    )
    points = list(recording.points)
    at = {p: space_at(space, problem, device, p.batch_size) for p in points}
    seeds = gemm_seeds(
        at,
        problem,
        device,
        space,
        engine.shipped(),
        known={p: [kernels.default_config(problem, p.batch_size, device.target)] for p in points},
        foreseen={p: predictor.shortlist(p, at[p].configs(), GEMM_FORESEEN) for p in points},
        without=[(problem.N, problem.K)],
    )
    model, spaces = predictor.estimate_all, {Dense.DENSE: space}
    trials = pooled(recording.trials, at)
    return Case(path.name, dict(spaces), at, seeds, model, BUDGETS[Effort.STANDARD], trials)


def ours(case: Case, seed: int) -> Found:
    """Everything that the search asks for, in order, as `tuner tune` runs it."""
    search = Search(case.spaces, list(case.at), case.seeds, case.budget, seed, case.at, case.model)
    found: Found = {point: {} for point in case.at}
    while asked := search.ask():
        for candidate in asked:
            measured = case.measure(candidate)
            found[candidate.point][candidate.config] = measured.median_us or math.inf
            search.tell(candidate, measured)
    return found


def timed(trial: Trial, us: float) -> Trial:
    return replace(trial, measurement=replace(trial.measurement, median_us=us))


def at_random(case: Case, seed: int) -> Found:
    rng = random.Random(seed)
    found: Found = {}
    for point, space in case.at.items():
        some = rng.sample(space.configs(), min(case.budget.per_point, len(space)))
        tried = (Candidate(point, config) for config in some)
        found[point] = {c.config: case.measure(c).median_us or math.inf for c in tried}
    return found


def plain_tpe(case: Case, seed: int) -> Found:
    """Optuna's TPE as it comes, a study for each point; repeats and illegal ones cost nothing."""
    found: Found = {point: {} for point in case.at}
    for number, (point, space) in enumerate(case.at.items()):
        sampler = optuna.samplers.TPESampler(seed=1000 * seed + number)
        study = optuna.create_study(sampler=sampler)
        for _ in range(4 * case.budget.per_point):
            if len(found[point]) == case.budget.per_point:
                break
            trial = study.ask()
            axes = {n: trial.suggest_int(n, 0, len(v) - 1) for n, v in space.axes.items()}
            config = space.at(axes)
            us = case.measure(Candidate(point, config)).median_us if space.legal(config) else None
            if space.legal(config):
                found[point][config] = us or math.inf
            if us is None:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, us)
    return found


def regrets(case: Case, found: Found) -> list[float]:
    """By point: the time of the best that was found / the best in the recording - 1."""
    return [_regret(case.times(p), found[p]) for p in case.at]


def _regret(times: Mapping[Config, float], found: Mapping[Config, float]) -> float:
    best = min(found, key=lambda config: found[config])
    return times.get(best, math.inf) / min(times.values()) - 1


CONTENDERS: dict[str, Contender] = {
    "this project's search": ours,
    "plain TPE": plain_tpe,
    "random": at_random,
}


def cell(some: Sequence[Sequence[float]]) -> str:
    """The geometric mean of all regrets, and the worst one."""
    flat = [regret for one in some for regret in one]
    geomean = math.exp(statistics.fmean(map(math.log1p, flat))) - 1
    return f"{geomean:.2%} / {max(flat):.2%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rows: dict[str, dict[str, list[list[float]]]] = {}
    tries: dict[str, int] = {}
    for name in (*SEEN, *UNSEEN, *LATER):
        path = RECORDINGS / f"{name}.csv.gz"
        case = moe_case(path) if "_E" in name else gemm_case(path)
        rows[name] = {
            who: [regrets(case, contend(case, seed)) for seed in range(options.runs)]
            for who, contend in CONTENDERS.items()
        }
        tries[name] = case.budget.per_point
        print(name, {who: cell(some) for who, some in rows[name].items()}, flush=True)
    RESULTS.write_text(json.dumps({"runs": options.runs, "tries": tries, "regrets": rows}))
    for title, group in (("seen", SEEN), ("kept apart", UNSEEN), ("later", LATER)):
        print(f"\n| {title} | {' | '.join(group)} | all |\n{'|---' * (len(group) + 2)}|")
        for who in CONTENDERS:
            cells = [cell(rows[name][who]) for name in group]
            everything = cell([one for name in group for one in rows[name][who]])
            print(f"| {who} | {' | '.join(cells)} | {everything} |")


if __name__ == "__main__":
    main()

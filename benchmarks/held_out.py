"""The search on keys that it was made with and on keys kept apart, beside other searches.

Run from the repository's root:
    .venv/bin/python benchmarks/held_out.py [--runs 20] [--kernel-tuner KT/bin/python]
Prints the table of docs/benchmarks.md and writes every regret to benchmarks/results/held_out.json.
Every search gets the same number of tries at a point. What sglang ships for a recording's own key
is left out of the seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import optuna
from gemm_recordings import recordings
from search_on_recording import Setting, seeds_from, without_twins

from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.families.dense_gemm.engine import gemm_engine
from tuner.families.dense_gemm.predict.predictor import GemmPredictor
from tuner.families.dense_gemm.problem import Gemm as Dense
from tuner.families.dense_gemm.seeds import seeds_for
from tuner.families.dense_gemm.space import gemm_space, space_at
from tuner.families.dense_gemm.tuning import BUDGETS, FORESEEN
from tuner.families.fused_moe.predict.predictor import Predictor
from tuner.families.fused_moe.problem import Gemm
from tuner.families.fused_moe.recording import read_recording
from tuner.families.fused_moe.space import space_for
from tuner.problems.points import Candidate, Config, Part, Point
from tuner.problems.results import Measurement, Status, Trial
from tuner.tuning.budget import Budget, budget_for
from tuner.tuning.request import Effort
from tuner.tuning.search import Search
from tuner.tuning.space import Space
from tuner.tuning.track import Model

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
STRATEGIES = ("genetic_algorithm", "simulated_annealing", "greedy_ils")
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
    device, problem = recording.device, recording.problem
    assert device is not None  # it is in the file's name
    spaces = {gemm: space_for(problem, device, gemm) for gemm in Gemm}
    budget = budget_for(Effort.STANDARD, len(recording.points), max(map(len, spaces.values())))
    setting = Setting(recording, device, ENGINE, spaces, budget)
    files = without_twins(setting)
    model = Predictor(device, problem, files).estimate_all
    seeds = seeds_from(setting, files)
    trials = pooled(recording.trials, setting.at)
    return Case(path.name, dict(spaces), setting.at, seeds, model, budget, trials)


def gemm_case(path: Path) -> Case:
    ((problem, recording),) = recordings([path])
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
    seeds = seeds_for(
        at,
        problem,
        device,
        space,
        engine.shipped(),
        known={p: [kernels.default_config(problem, p.batch_size, device.target)] for p in points},
        foreseen={p: predictor.shortlist(p, at[p].configs(), FORESEEN) for p in points},
        without=[(problem.N, problem.K)],
    )
    budget = BUDGETS[Effort.STANDARD]

    model = predictor.estimate_all
    spaces: dict[Part, Space] = {Dense.DENSE: space}
    return Case(path.name, spaces, at, seeds, model, budget, pooled(recording.trials, at))


def ours(case: Case, seed: int) -> Found:
    """The search as `tuner tune` runs it."""
    points = list(case.at)
    seeds, at = case.seeds, case.at
    return tried(case, Search(case.spaces, points, seeds, case.budget, seed, at, case.model))


def tried(case: Case, search: Search) -> Found:
    """Everything that a search asks for, in order."""
    found: Found = {point: {} for point in case.at}
    while asked := search.ask():
        for candidate in asked:
            measured = case.measure(candidate)
            found[candidate.point][candidate.config] = measured.median_us or math.inf
            search.tell(candidate, measured)
    return found


def off_by(case: Case, deviation: float, seed: str) -> Case:
    """The case with recorded times that are off by random factors.

    `deviation` is the standard deviation of a factor's logarithm.
    """
    rng = random.Random(seed)

    def moved(trial: Trial) -> Trial:
        factor = math.exp(rng.gauss(0, deviation))
        us = trial.measurement.median_us
        return trial if us is None else timed(trial, us * factor)

    return replace(case, trials={c: moved(t) for c, t in case.trials.items()})


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


def kernel_tuner_cache(case: Case, point: Point) -> dict[str, object]:
    """A point of a recording as the cache file of Kernel Tuner's simulation mode."""
    space, names = case.at[point], list(case.at[point].axes)
    timed: dict[str, dict[str, object]] = {}
    for config in space.configs():
        values = {name: space.axes[name][at] for name, at in space.indices(config).items()}
        us = case.measure(Candidate(point, config)).median_us
        spent = {"compile_time": 0, "verification_time": 0, "benchmark_time": 0}
        spent |= {"framework_time": 0, "strategy_time": 0, "timestamp": ""}
        time: float | str = "RuntimeFailedConfig" if us is None else us
        timed[",".join(map(str, values.values()))] = {**values, "time": time, **spent}
    return {
        "device_name": "recorded",
        "kernel_name": "recorded",
        "problem_size": 1,
        "tune_params_keys": names,
        "tune_params": {name: list(space.axes[name]) for name in names},
        "objective": "time",
        "cache": timed,
    }


def kernel_tuner_regrets(case: Case, python: str, seeds: int) -> dict[str, list[list[float]]]:
    """The regrets of each strategy at the points, for each seed."""
    with tempfile.TemporaryDirectory() as folder:
        for number, point in enumerate(case.at):
            cache = json.dumps(kernel_tuner_cache(case, point))
            (Path(folder) / f"{number:02}.json").write_text(cache)
        script = str(Path(__file__).with_name("kernel_tuner_replay.py"))
        asked = [python, script, folder, str(case.budget.per_point), str(seeds), *STRATEGIES]
        answer = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    best = {f"{number:02}": min(case.times(p).values()) for number, p in enumerate(case.at)}
    return {
        strategy: [[us / best[name] - 1 for name, us in sorted(run.items())] for run in runs]
        for strategy, runs in json.loads(answer).items()
    }


def regrets(case: Case, found: Found) -> list[float]:
    """By point: the time of the best that was found / the best in the recording - 1."""
    return [_regret(case.times(p), found[p]) for p in case.at]


def _regret(times: Mapping[Config, float], found: Mapping[Config, float]) -> float:
    best = min(found, key=lambda config: found[config])
    return times.get(best, math.inf) / min(times.values()) - 1


def run(case: Case, runs: int, python: str | None) -> dict[str, list[list[float]]]:
    contenders: dict[str, Contender] = {
        "this project's search": ours,
        "plain TPE": plain_tpe,
        "random": at_random,
    }
    found = {
        name: [regrets(case, contend(case, seed)) for seed in range(runs)]
        for name, contend in contenders.items()
    }
    if python:
        theirs = kernel_tuner_regrets(case, python, runs)
        found |= {f"Kernel Tuner: {name}": some for name, some in theirs.items()}
    return found


def cell(some: Sequence[Sequence[float]]) -> str:
    """The geometric mean of all regrets, and the worst one."""
    flat = [regret for one in some for regret in one]
    geomean = math.exp(statistics.fmean(map(math.log1p, flat))) - 1
    return f"{geomean:.2%} / {max(flat):.2%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--kernel-tuner", help="a Python that has kernel-tuner")
    parser.add_argument("--only", nargs="*", help="recordings, without their endings")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rows: dict[str, dict[str, list[list[float]]]] = {}
    tries: dict[str, int] = {}
    for name in options.only or (*SEEN, *UNSEEN, *LATER):
        path = RECORDINGS / f"{name}.csv.gz"
        case = moe_case(path) if "_E" in name else gemm_case(path)
        rows[name] = run(case, options.runs, options.kernel_tuner)
        tries[name] = case.budget.per_point
        print(name, {who: cell(some) for who, some in rows[name].items()}, flush=True)
    options.out.write_text(json.dumps({"runs": options.runs, "tries": tries, "regrets": rows}))
    for title, group in (("seen", SEEN), ("kept apart", UNSEEN), ("later", LATER)):
        names = [name for name in group if name in rows]
        if not names:
            continue
        print(f"\n| {title} | {' | '.join(names)} | all |\n{'|---' * (len(names) + 2)}|")
        for who in rows[names[0]]:
            cells = [cell(rows[name][who]) for name in names]
            everything = cell([one for name in names for one in rows[name][who]])
            print(f"| {who} | {' | '.join(cells)} | {everything} |")


if __name__ == "__main__":
    main()
